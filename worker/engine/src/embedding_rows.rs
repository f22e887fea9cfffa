//! Which rows of the token table a step looks up: those of an embedding whose gradient is sparse.

use std::{ops::Range, sync::Arc};

/// The ids that are inputs anywhere in a step, over all its microbatches: each once, the smallest first. Their **places** in this list
/// are the rows of the bucket that has the gradient of what was looked up. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbeddingRows(Arc<[i64]>);

impl EmbeddingRows {
    /// Of inputs in any order, as often as they occur.
    pub fn of(inputs: impl IntoIterator<Item = i64>) -> Self {
        let mut ids: Vec<i64> = inputs.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        Self(ids.into())
    }

    /// The ids, in the order of their places.
    pub fn ids(&self) -> &[i64] {
        &self.0
    }

    /// Rows that are looked up.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The place of an id. None: no microbatch of the step has it as an input.
    pub fn place_of(&self, id: i64) -> Option<usize> {
        self.0.binary_search(&id).ok()
    }

    /// The places of the ids of a part of the table.
    pub fn places_within(&self, ids: Range<i64>) -> Range<usize> {
        let before = |end: i64| self.0.partition_point(|id| *id < end);
        before(ids.start)..before(ids.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_has_one_place_in_their_order() {
        let rows = EmbeddingRows::of([7, 3, 7, 90, 0, 3]);
        assert_eq!(rows.ids(), [0, 3, 7, 90]);
        assert_eq!((rows.count(), EmbeddingRows::default().count()), (4, 0));
        assert_eq!(
            [0, 7, 90, 4, -1, 91].map(|id| rows.place_of(id)),
            [Some(0), Some(2), Some(3), None, None, None]
        );
    }

    #[test]
    fn parts_of_the_table_share_the_places() {
        let rows = EmbeddingRows::of([0, 3, 7, 90]);
        let parts = [0..3, 3..7, 7..7, 7..91].map(|part| rows.places_within(part));
        assert_eq!(parts, [0..1, 1..2, 2..2, 2..4]);
    }
}
