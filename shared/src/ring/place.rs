//! A rank's place in a ring.

use crate::ids::{Epoch, JobId};

/// A rank's place in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The job.
    pub job: JobId,
    /// The ring's epoch.
    pub epoch: Epoch,
    /// This rank, below `world_size`.
    pub rank: usize,
    /// Ranks in the ring, at least 1.
    pub world_size: usize,
}

impl Place {
    /// The rank that this one sends to.
    pub fn next(&self) -> usize {
        (self.rank + 1) % self.world_size.max(1)
    }

    /// The rank that this one receives from.
    pub fn previous(&self) -> usize {
        (self.rank + self.world_size.saturating_sub(1)) % self.world_size.max(1)
    }
}
