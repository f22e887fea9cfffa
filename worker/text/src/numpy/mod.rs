//! `numpy.random.default_rng(seed).permutation(n)`: Hugging Face's `datasets` splits by it.
//!
//! Source: NumPy 2, `numpy/random/_generator.pyx` (`permutation`, `shuffle`) and
//! `src/distributions/distributions.c` (`random_interval`). NumPy promises the stream of PCG64 and of SeedSequence
//! for ever; of `permutation` it has not changed since 1.18.

mod pcg64;
mod seed_sequence;

use pcg64::Pcg64;

/// The permutation of 0..`count` that belongs to `seed`: entry i is the number that comes at place i.
pub(crate) fn permutation(seed: u64, count: u32) -> Vec<u32> {
    let mut generator = Pcg64::of_seed(seed);
    let mut order: Vec<u32> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last as usize, below_or_equal(&mut generator, last) as usize);
    }
    order
}

/// A number of 0..=`most`: random bits under the smallest mask that covers it, drawn again while they are more.
fn below_or_equal(generator: &mut Pcg64, most: u32) -> u32 {
    let mask = u32::MAX.checked_shr(most.leading_zeros()).unwrap_or(0);
    loop {
        let drawn = generator.next_u32() & mask;
        if drawn <= most {
            return drawn;
        }
    }
}

#[cfg(test)]
mod tests {
    use ringtune_shared::ids::ContentHash;

    use super::*;

    /// `[list(numpy.random.default_rng(seed).permutation(10)) for seed in …]` of NumPy 2.4.6.
    #[test]
    fn small_permutations_are_numpys() {
        for (seed, expected) in [
            (0, [4, 6, 2, 7, 3, 5, 9, 0, 8, 1]),
            (1, [8, 4, 7, 0, 1, 2, 5, 9, 6, 3]),
            (2357, [8, 3, 0, 9, 5, 6, 2, 7, 4, 1]),
            (1 << 32, [9, 1, 3, 8, 7, 6, 0, 4, 2, 5]),
            (u64::MAX, [8, 7, 3, 0, 4, 6, 1, 2, 5, 9]),
        ] {
            assert_eq!(permutation(seed, 10), expected, "{seed}");
        }
        assert_eq!(permutation(2357, 2), [0, 1]);
        assert_eq!(permutation(2357, 1), [0]);
        assert!(permutation(2357, 0).is_empty());
    }

    /// `sha256(default_rng(2357).permutation(100003).astype('<u4'))` of NumPy 2.4.6.
    #[test]
    fn a_large_permutation_is_numpys() {
        let bytes: Vec<u8> =
            permutation(2357, 100_003).iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(
            ContentHash::of(&bytes).to_string(),
            "f8a8c7bb7fd99add6c3a3c6b7d4d1c2e50358c40cdcc79c00cd4d4bb12f759d0"
        );
    }
}
