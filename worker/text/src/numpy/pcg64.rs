//! PCG64: a 128-bit linear congruential generator whose output is folded (XSL-RR).
//!
//! Source: O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random Number
//! Generation", HMC-CS-2014-0905, section 6.3.3; NumPy, `numpy/random/_pcg64.pyx` for how it is seeded and halved.

use super::seed_sequence::SeedSequence;

/// PCG's own 128-bit multiplier.
const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

/// The generator, and the half of an output that was not wanted yet.
pub(super) struct Pcg64 {
    state: u128,
    /// Odd: it chooses the stream.
    increment: u128,
    half: Option<u32>,
}

impl Pcg64 {
    /// As `numpy.random.PCG64(seed)`.
    pub(super) fn of_seed(seed: u64) -> Self {
        let [state_high, state_low, stream_high, stream_low] = SeedSequence::of_seed(seed).four_words();
        let joined = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let increment = joined(stream_high, stream_low) << 1 | 1;
        let mut generator = Self { state: 0, increment, half: None };
        generator.step();
        generator.state = generator.state.wrapping_add(joined(state_high, state_low));
        generator.step();
        generator
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    /// The next 64 bits.
    pub(super) fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// The next 32 bits: first the low half of 64, then the high one.
    pub(super) fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let next = self.next_u64();
        self.half = Some((next >> 32) as u32);
        next as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numpy.random.default_rng(2357).bit_generator`: `state`, and `random_raw(4)`.
    #[test]
    fn the_stream_is_numpys() {
        let mut generator = Pcg64::of_seed(2357);
        assert_eq!(generator.state, 93_373_621_760_308_249_368_023_957_479_442_950_405);
        assert_eq!(generator.increment, 260_106_623_109_389_378_891_322_234_864_936_905_887);
        let expected = [
            3_554_037_535_358_686_929,
            17_305_761_578_865_237_604,
            6_883_231_559_200_952_194,
            4_629_430_153_462_828_566,
        ];
        assert_eq!([(); 4].map(|()| generator.next_u64()), expected);
    }

    #[test]
    fn halves_come_low_one_first() {
        let mut generator = Pcg64::of_seed(2357);
        let first = 3_554_037_535_358_686_929_u64;
        assert_eq!([generator.next_u32(), generator.next_u32()], [first as u32, (first >> 32) as u32]);
        assert_eq!(generator.next_u32(), 17_305_761_578_865_237_604_u64 as u32);
    }
}
