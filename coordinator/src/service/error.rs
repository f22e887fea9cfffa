//! What a request can fail with.

use std::sync::Arc;

use ringtune_shared::ids::{JobId, SweepId, WorkerId};

use crate::core::{JobState, Refusal};
use crate::store;

/// Why a request was not done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The core refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It could not be stored or read.
    #[error(transparent)]
    Store(Arc<store::Error>),
    /// There is no such job.
    #[error("there is no job {0}")]
    NoSuchJob(JobId),
    /// There is no such sweep.
    #[error("there is no sweep {0}")]
    NoSuchSweep(SweepId),
    /// There is no such worker.
    #[error("there is no worker {0}")]
    NoSuchWorker(WorkerId),
    /// The job has no file of this name.
    #[error("job {job} has no artifact {name:?}")]
    NoSuchArtifact {
        /// The job.
        job: JobId,
        /// As given.
        name: String,
    },
    /// The job has ended: nothing about it changes any more.
    #[error("job {job} has ended ({state})")]
    AlreadyEnded {
        /// The job.
        job: JobId,
        /// How it ended.
        state: JobState,
    },
    /// The job has not ended.
    #[error("job {job} is {state}: cancel it first")]
    NotEnded {
        /// The job.
        job: JobId,
        /// Where it is.
        state: JobState,
    },
    /// A watch is to begin after an event that there never was.
    #[error("got {given}; the newest event of the job is {newest}")]
    NoSuchSequence {
        /// As given.
        given: u64,
        /// The job's last one.
        newest: u64,
    },
    /// Whoever watches many jobs reads more slowly than things happen.
    #[error(
        "{missed} events came faster than they were read: watch again, which starts with each job as it is then"
    )]
    TooSlow {
        /// Events that are lost to this watch.
        missed: u64,
    },
    /// The coordinator stops.
    #[error("the coordinator is shutting down")]
    ShuttingDown,
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        Self::Store(Arc::new(error))
    }
}
