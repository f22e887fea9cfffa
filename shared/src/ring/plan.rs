//! The members of a ring, and the shares of their ranks.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, JobId, WorkerId};

/// The membership of one job's ring in one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingView {
    /// The job.
    pub job: JobId,
    /// Number of this membership, from 1.
    pub epoch: Epoch,
    /// In the order of the ranks.
    pub members: Vec<Member>,
}

/// A member of a ring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its worker.
    pub worker: WorkerId,
    /// Its address for neighbours: host:port.
    pub address: String,
}

/// A membership that makes no ring.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There is nobody in it.
    #[error("the ring has no members")]
    Empty,
    /// It has more members than there may be.
    #[error("the ring has {0} members; allowed: at most 1024")]
    TooLarge(usize),
    /// Epochs count from 1.
    #[error("the ring has epoch 0; epochs count from 1")]
    NoEpoch,
    /// A worker holds two ranks.
    #[error("worker {0} is in the ring twice")]
    WorkerTwice(WorkerId),
    /// Two workers claim one address, or one has none.
    #[error("the address {0:?} is empty or in the ring twice")]
    Address(String),
    /// A rank that is not there.
    #[error("there is no rank {rank} in a ring of {world_size}")]
    NoSuchRank {
        /// The rank asked for.
        rank: usize,
        /// Ranks in the ring.
        world_size: usize,
    },
}

/// Members of a ring.
const LARGEST_RING: usize = 1024;

impl RingView {
    /// Checks that the members make one ring: at least one of them, each with one place and an
    /// address of its own. From such a list the ring closes: see [`RingView::next_of`].
    pub fn check(&self) -> Result<(), PlanError> {
        if self.members.is_empty() {
            return Err(PlanError::Empty);
        }
        if self.members.len() > LARGEST_RING {
            return Err(PlanError::TooLarge(self.members.len()));
        }
        if self.epoch < Epoch::FIRST {
            return Err(PlanError::NoEpoch);
        }
        let mut workers = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for member in &self.members {
            if !workers.insert(member.worker) {
                return Err(PlanError::WorkerTwice(member.worker));
            }
            if member.address.is_empty() || !addresses.insert(&member.address) {
                return Err(PlanError::Address(member.address.clone()));
            }
        }
        Ok(())
    }

    /// Ranks in the ring.
    pub fn world_size(&self) -> usize {
        self.members.len()
    }

    /// The rank that a worker holds.
    pub fn rank_of(&self, worker: WorkerId) -> Option<usize> {
        self.members.iter().position(|member| member.worker == worker)
    }

    /// The member that a rank sends to.
    pub fn next_of(&self, rank: usize) -> Result<&Member, PlanError> {
        let world_size = self.members.len();
        if rank >= world_size {
            return Err(PlanError::NoSuchRank { rank, world_size });
        }
        Ok(&self.members[(rank + 1) % world_size])
    }
}

/// The contiguous block of `total` things (microbatches, numbers) that falls to `rank` of
/// `world_size` ranks: the first `total mod world_size` ranks take one more than the others.
///
/// `rank < world_size`; otherwise the block is empty.
pub fn block_of(rank: usize, world_size: usize, total: usize) -> Range<usize> {
    if rank >= world_size {
        return total..total;
    }
    let (share, more) = (total / world_size, total % world_size);
    let start = rank * share + rank.min(more);
    start..start + share + usize::from(rank < more)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn view(members: usize) -> RingView {
        let members = (0..members)
            .map(|rank| Member { worker: WorkerId::new(), address: format!("host-{rank}:7080") })
            .collect();
        RingView { job: JobId::new(), epoch: Epoch::FIRST, members }
    }

    #[test]
    fn a_good_ring_closes_and_holds_every_rank() {
        for world_size in [1, 2, 3, 4, 7, 1024] {
            let view = view(world_size);
            view.check().unwrap();
            let mut at = 0;
            let mut seen = BTreeSet::new();
            for _ in 0..world_size {
                assert!(seen.insert(at));
                at = view.rank_of(view.next_of(at).unwrap().worker).unwrap();
            }
            assert_eq!(at, 0);
            assert_eq!(seen.len(), world_size);
        }
    }

    #[test]
    fn what_makes_no_ring_is_refused() {
        assert_eq!(view(0).check(), Err(PlanError::Empty));
        assert_eq!(view(1025).check(), Err(PlanError::TooLarge(1025)));
        let good = view(3);
        let mut wrong = good.clone();
        wrong.epoch = Epoch(0);
        assert_eq!(wrong.check(), Err(PlanError::NoEpoch));
        let mut wrong = good.clone();
        wrong.members[2].worker = good.members[0].worker;
        assert_eq!(wrong.check(), Err(PlanError::WorkerTwice(good.members[0].worker)));
        for address in ["", "host-0:7080"] {
            let mut wrong = good.clone();
            wrong.members[2].address = address.into();
            assert_eq!(wrong.check(), Err(PlanError::Address(address.into())));
        }
        assert_eq!(good.next_of(3), Err(PlanError::NoSuchRank { rank: 3, world_size: 3 }));
        assert_eq!(view(0).next_of(0), Err(PlanError::NoSuchRank { rank: 0, world_size: 0 }));
    }

    #[test]
    fn the_first_ranks_take_one_more() {
        let blocks: Vec<Range<usize>> = (0..4).map(|rank| block_of(rank, 4, 6)).collect();
        assert_eq!(blocks, [0..2, 2..4, 4..5, 5..6]);
        assert_eq!(block_of(2, 3, 2), 2..2);
        assert_eq!(block_of(0, 0, 5), 5..5);
    }

    proptest! {
        #[test]
        fn blocks_cover_everything_once_and_evenly(world_size in 1..50_usize, total in 0..1000_usize) {
            let blocks: Vec<Range<usize>> = (0..world_size).map(|rank| block_of(rank, world_size, total)).collect();
            prop_assert_eq!(blocks[0].start, 0);
            prop_assert_eq!(blocks[world_size - 1].end, total);
            prop_assert!(blocks.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].len() >= pair[1].len()));
            prop_assert!(blocks[0].len() - blocks[world_size - 1].len() <= 1);
        }
    }
}
