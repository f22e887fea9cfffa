//! What a job failed of, for programs.

use serde::{Deserialize, Serialize};

/// What failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// A rank said so.
    Rank,
    /// A worker did not come back in time, was restarted, or came back without its rank.
    WorkerLost,
    /// A rank lost its neighbour, and none could say why.
    NeighbourLost,
    /// A step that was done again gave another state than before.
    Diverged,
    /// A step of another job that was computed again came to another state than the one that is stored.
    Differs,
    /// What steps are stored of the job to be verified is there no more.
    NothingToCompare,
    /// It was not done by the time by which it had to be.
    OutOfTime,
}
