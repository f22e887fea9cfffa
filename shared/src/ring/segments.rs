//! Sizes of segments.

/// Of a chunk, at least, where its segments grow: all ranks have something to do while the first ones are on their way.
const SEGMENTS_OF_A_CHUNK: usize = 8;

/// Numbers of a segment, where `length` numbers are cut into a chunk for each of `ranks` ranks: `least`, or for a large buffer
/// up to `growth` times as many, for each segment has its price. It follows from what all ranks know, so that all cut alike.
pub(super) fn segment_of(length: usize, ranks: usize, least: usize, growth: usize) -> usize {
    let wanted = length.div_ceil(ranks.max(1)) / SEGMENTS_OF_A_CHUNK;
    least * (wanted / least).clamp(1, growth)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn large_buffers_have_larger_segments_within_the_bounds() {
        let of = |length, ranks| segment_of(length, ranks, 1 << 16, 4) >> 16;
        // Buckets of 25 MB and of 1 MB, and a model of 498 MB.
        assert_eq!([of(6_250_000, 2), of(6_250_000, 4), of(6_250_000, 8)], [4, 2, 1]);
        assert_eq!([of(250_000, 2), of(0, 2), of(124_500_000, 4), of(124_500_000, 0)], [1, 1, 4, 4]);
        assert_eq!(segment_of(usize::MAX, 1, 3, 1), 3);
    }

    proptest! {
        #[test]
        fn segments_that_grow_leave_enough_for_all(
            length in 0..1_000_000usize, ranks in 1..20usize, least in 1..5000usize, growth in 1..9usize,
        ) {
            let segment = segment_of(length, ranks, least, growth);
            prop_assert!(segment.is_multiple_of(least) && segment <= least * growth && segment >= least);
            let count = length.div_ceil(ranks) / segment;
            prop_assert!(segment == least || count >= SEGMENTS_OF_A_CHUNK);
        }
    }
}
