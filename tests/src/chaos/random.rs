//! Random numbers that a seed gives again.

use std::{ops::Range, time::Duration};

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of the range, which is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.bits() % (range.end - range.start).max(1)
    }

    /// A time between the two, in milliseconds.
    pub fn pause(&mut self, milliseconds: Range<u64>) -> Duration {
        Duration::from_millis(self.within(milliseconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_its_numbers_again_and_another_seed_others() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.within(5..9)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(3), numbers(3));
        assert_ne!(numbers(3), numbers(4));
        let seen: std::collections::BTreeSet<u64> = numbers(3).into_iter().collect();
        assert_eq!(seen, (5..9).collect());
    }
}
