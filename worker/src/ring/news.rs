//! News that travel along with the gradients of a step.

use ringtune_shared::{ids::Epoch, ring::whole};

/// News of a rank, or of all ranks of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// The newest epoch of the job's ring: above the ring's own, a newer ring is wanted after this step. The coordinator may
    /// not have made it yet.
    pub newest_epoch: Epoch,
    /// The coordinator has stored the reports of the steps up to this one.
    pub stored_step: u64,
}

impl News {
    /// Floats that travel behind each row.
    pub(super) const COLUMNS: usize = 2 * whole::FLOATS;

    /// Nothing that the ring of this epoch does not know anyhow.
    pub(super) fn none(epoch: Epoch) -> Self {
        Self { newest_epoch: epoch, stored_step: 0 }
    }

    /// As they travel.
    pub(super) fn columns(self) -> impl Iterator<Item = f32> {
        whole::to_floats(self.newest_epoch.0).into_iter().chain(whole::to_floats(self.stored_step))
    }

    /// Takes the news from the end of a row. None: they are not there.
    pub(super) fn strip(row: &mut Vec<f32>) -> Option<Self> {
        let columns = row.split_off(row.len().checked_sub(Self::COLUMNS)?);
        let (epoch, step) = columns.split_at(whole::FLOATS);
        Some(Self { newest_epoch: Epoch(whole::from_floats(epoch)?), stored_step: whole::from_floats(step)? })
    }

    /// Merges two news.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            newest_epoch: self.newest_epoch.max(other.newest_epoch),
            stored_step: self.stored_step.max(other.stored_step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_travel_behind_a_row_and_leave_it_as_it_was() {
        let news = News { newest_epoch: Epoch(1 << 40 | 3), stored_step: u64::MAX };
        let mut row = vec![1.5, f32::NAN];
        row.extend(news.columns());
        assert_eq!(row.len(), 2 + News::COLUMNS);
        assert_eq!(News::strip(&mut row), Some(news));
        assert!(row.len() == 2 && row[0] == 1.5 && row[1].is_nan());
        assert_eq!(News::strip(&mut row), None);
        assert_eq!(News::strip(&mut vec![0.5; News::COLUMNS]), None);
    }

    #[test]
    fn the_newest_of_both_is_kept() {
        let of = |epoch, stored_step| News { newest_epoch: Epoch(epoch), stored_step };
        assert_eq!(of(3, 7).and(of(2, 9)), of(3, 9));
    }
}
