//! Chunks of a buffer, and the ranks that get their sums.

use std::ops::Range;

use super::block_of;

/// Distribution of a buffer's sums over the ranks, the same on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// Chunks begin at multiples of this number, at least 1.
    pub granule: usize,
    /// The ranks that get a sum.
    pub reach: Reach,
}

/// On which ranks a sum ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// On all.
    All,
    /// On two for each chunk, see [`held_chunks`]; the rest of a rank's buffer is undefined. [`super::Ring::share_out`] is
    /// what is left of the way.
    Two,
}

impl Reach {
    /// The hops of an all-reduce that bring the sums there. In each, every rank sends a chunk.
    pub fn hops(self, ranks: usize) -> Range<usize> {
        let all = 2 * ranks.saturating_sub(1);
        match self {
            Self::All => 0..all,
            // One hop more than the sum takes.
            Self::Two => 0..ranks.min(all),
        }
    }

    /// The remaining hops.
    pub fn rest(self, ranks: usize) -> Range<usize> {
        self.hops(ranks).end..Self::All.hops(ranks).end
    }
}

impl Spread {
    /// Every sum on every rank, in chunks as long as can be.
    pub const EVEN: Self = Self { granule: 1, reach: Reach::All };
}

/// The numbers of a chunk: of `chunks`, in a buffer of `length`, that begin at multiples of `granule`.
pub fn chunk_of(chunk: usize, chunks: usize, length: usize, granule: usize) -> Range<usize> {
    let granule = granule.max(1);
    let block = block_of(chunk, chunks, length.div_ceil(granule));
    let place = |granules: usize| granules.saturating_mul(granule).min(length);
    place(block.start)..place(block.end)
}

/// The two chunks whose sums a rank has after a sum of [`Reach::Two`]: its own, which are whole there first, and those of the rank
/// before it. In a ring of one they are the same.
pub fn held_chunks(rank: usize, ranks: usize, length: usize, granule: usize) -> [Range<usize>; 2] {
    let ranks = ranks.max(1);
    [(rank + 1) % ranks, rank % ranks].map(|chunk| chunk_of(chunk, ranks, length, granule))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn chunks_begin_at_multiples_and_the_last_ones_may_be_empty() {
        let all =
            |length, granule| -> Vec<_> { (0..3).map(|chunk| chunk_of(chunk, 3, length, granule)).collect() };
        assert_eq!(all(10, 1), [0..4, 4..7, 7..10]);
        assert_eq!(all(10, 4), [0..4, 4..8, 8..10]);
        assert_eq!(all(5, 4), [0..4, 4..5, 5..5]);
        assert_eq!(all(0, 4), [0..0, 0..0, 0..0]);
        assert_eq!(held_chunks(0, 3, 10, 4), [4..8, 0..4]);
        assert_eq!(held_chunks(2, 3, 10, 4), [0..4, 8..10]);
        assert_eq!(held_chunks(0, 1, 10, 4), [0..10, 0..10]);
    }

    #[test]
    fn the_rest_of_the_way_is_what_others_lack() {
        let of = |ranks| [Reach::All, Reach::Two].map(|reach| (reach.hops(ranks), reach.rest(ranks)));
        assert_eq!(of(4), [(0..6, 6..6), (0..4, 4..6)]);
        assert_eq!(of(2), [(0..2, 2..2), (0..2, 2..2)]);
        assert_eq!(of(1), [(0..0, 0..0), (0..0, 0..0)]);
    }

    proptest! {
        #[test]
        fn every_number_is_in_one_chunk_and_on_two_ranks(
            length in 0..1000usize, ranks in 1..9usize, granule in 1..50usize,
        ) {
            let mut next = 0;
            for chunk in (0..ranks).map(|chunk| chunk_of(chunk, ranks, length, granule)) {
                prop_assert_eq!(chunk.start, next);
                prop_assert!(chunk.start.is_multiple_of(granule) || chunk.start == length);
                next = chunk.end;
            }
            prop_assert_eq!(next, length);
            for number in 0..length {
                let holds = |rank: &usize| held_chunks(*rank, ranks, length, granule).iter().any(|held| held.contains(&number));
                prop_assert_eq!((0..ranks).filter(holds).count(), ranks.min(2));
            }
        }
    }
}
