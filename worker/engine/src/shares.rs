//! Which part of a model's optimizer a rank has, where its ranks have it together.

use std::{iter, ops::Range, sync::Arc};

/// Of each of the plan's buckets the numbers whose moments a rank has: those that are its **own**, and a **copy** of what is another
/// rank's own. The two do not overlap, unless they are the same: all of a bucket, of a rank that is alone. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares(Arc<[[Range<usize>; 2]]>);

impl Shares {
    /// In the buckets' order, [own, copy] of each.
    pub fn of(buckets: impl IntoIterator<Item = [Range<usize>; 2]>) -> Self {
        Self(buckets.into_iter().collect())
    }

    /// Buckets that it is of.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// What is the rank's own of a bucket.
    pub fn own(&self, bucket: usize) -> Range<usize> {
        self.0.get(bucket).map_or(0..0, |[own, _]| own.clone())
    }

    /// All that it has of a bucket: none of them empty, in the order of their places.
    pub fn held(&self, bucket: usize) -> impl Iterator<Item = Range<usize>> {
        let [own, copy] = self.0.get(bucket).cloned().unwrap_or_default();
        let both = match (own == copy, own.start <= copy.start) {
            (true, _) => [own, 0..0],
            (false, true) => [own, copy],
            (false, false) => [copy, own],
        };
        both.into_iter().filter(|range| !range.is_empty())
    }

    /// The rest of a bucket of so many numbers.
    pub fn missing(&self, bucket: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
        let mut next = 0;
        let gaps = self.held(bucket).chain(iter::once(length..length)).map(move |held| {
            let gap = next..held.start.max(next);
            next = held.end.max(next);
            gap
        });
        gaps.filter(|gap| !gap.is_empty())
    }
}

/// What two ranges have in common.
pub fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let (start, end) = (one.start.max(other.start), one.end.min(other.end));
    start..end.max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_and_what_is_missing_is_all() {
        let shares = Shares::of([[4..6, 2..4], [0..3, 7..9], [0..5, 0..5], [9..9, 0..0]]);
        let ends = |range: Range<usize>| (range.start, range.end);
        let held = |bucket| shares.held(bucket).map(ends).collect::<Vec<_>>();
        let missing = |bucket, length| shares.missing(bucket, length).map(ends).collect::<Vec<_>>();
        assert_eq!((shares.count(), shares.own(0), shares.own(7)), (4, 4..6, 0..0));
        assert_eq!((held(0), missing(0, 8)), (vec![(2, 4), (4, 6)], vec![(0, 2), (6, 8)]));
        assert_eq!((held(1), missing(1, 9)), (vec![(0, 3), (7, 9)], vec![(3, 7)]));
        assert_eq!((held(2), missing(2, 5)), (vec![(0, 5)], vec![]));
        assert_eq!((held(3), missing(3, 9)), (vec![], vec![(0, 9)]));
        assert_eq!((held(4), missing(4, 2)), (vec![], vec![(0, 2)]));
        assert_eq!([common(&(2..5), &(4..9)), common(&(0..2), &(3..5))], [4..5, 3..3]);
    }
}
