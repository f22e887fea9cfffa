//! NumPy's seeding of a generator's state: a pool of four words, mixed by hashing.
//!
//! Source: NumPy, `numpy/random/bit_generator.pyx` (`SeedSequence`), after O'Neill's `randutils`
//! (pcg-random.org, "Developing a seed_seq Alternative").

const POOL: usize = 4;
const INIT_A: u32 = 0x43b0_d7e5;
const MULT_A: u32 = 0x931e_8875;
const INIT_B: u32 = 0x8b51_f9dd;
const MULT_B: u32 = 0x58f3_8ded;
const MIX_LEFT: u32 = 0xca01_f9dd;
const MIX_RIGHT: u32 = 0x4973_f715;
const SHIFT: u32 = 16;

/// The mixed pool of one seed.
pub(super) struct SeedSequence {
    pool: [u32; POOL],
}

impl SeedSequence {
    /// As `numpy.random.SeedSequence(seed)`.
    pub(super) fn of_seed(seed: u64) -> Self {
        // NumPy takes as many words as the number needs, and 0 for the others: that is the same.
        let entropy = [seed as u32, (seed >> 32) as u32, 0, 0];
        let mut constant = INIT_A;
        let mut hash = |word: u32| {
            let mut hashed = word ^ constant;
            constant = constant.wrapping_mul(MULT_A);
            hashed = hashed.wrapping_mul(constant);
            hashed ^ hashed >> SHIFT
        };
        let mut pool = entropy.map(&mut hash);
        for from in 0..POOL {
            for to in (0..POOL).filter(|to| *to != from) {
                pool[to] = mix(pool[to], hash(pool[from]));
            }
        }
        Self { pool }
    }

    /// As `generate_state(4, numpy.uint64)`.
    pub(super) fn four_words(&self) -> [u64; 4] {
        let mut constant = INIT_B;
        let mut places = self.pool.iter().cycle();
        let mut next = || {
            let mut word = places.next().copied().unwrap_or_default() ^ constant;
            constant = constant.wrapping_mul(MULT_B);
            word = word.wrapping_mul(constant);
            u64::from(word ^ word >> SHIFT)
        };
        [(); 4].map(|()| next() | next() << 32)
    }
}

fn mix(left: u32, right: u32) -> u32 {
    let mixed = left.wrapping_mul(MIX_LEFT).wrapping_sub(right.wrapping_mul(MIX_RIGHT));
    mixed ^ mixed >> SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numpy.random.SeedSequence(2357)`: `pool`, and `generate_state(8)` of NumPy 2.4.6.
    #[test]
    fn the_pool_and_the_state_are_numpys() {
        let sequence = SeedSequence::of_seed(2357);
        assert_eq!(sequence.pool, [3_142_016_354, 1_758_808_967, 2_470_209_751, 1_627_935_223]);
        let words = [
            2_033_030_410_u32,
            2_334_251_895,
            2_759_712_655,
            2_521_933_359,
            1_204_427_501,
            3_788_987_217,
            3_230_512_719,
            2_363_998_569,
        ];
        let joined = |place: usize| u64::from(words[place]) | u64::from(words[place + 1]) << 32;
        assert_eq!(sequence.four_words(), [0, 2, 4, 6].map(joined));
    }
}
