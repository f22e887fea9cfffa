//! Chance: a small generator (splitmix64), so that a seed means the same for ever.

/// A schedule's random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// Of this seed.
    pub(crate) fn of(seed: u64) -> Self {
        Self(mix(seed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From 0 up to this, which is not reached.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// Milliseconds, both ends included.
    pub(crate) fn between(&mut self, least: i64, most: i64) -> i64 {
        least + (self.next() % (most - least + 1).unsigned_abs()) as i64
    }

    /// True once in so many times.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Every bit of the outcome depends on every bit that goes in.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
