//! Why a rank's work ends early. The text reaches the user as the job's reason.

use ringtune_shared::{files::FileError, ring::RingError};

use crate::{
    base_model, contents,
    engine::EngineError,
    fault::{Blame, Fault},
    ring, train,
};

/// Each names the job's field, the file or the neighbour it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The neighbours.
    #[error("ring: {0}")]
    Ring(#[from] ring::Error),
    /// Ranks that would not compute the same.
    #[error("rank {rank} has another {what} than rank 0: the job's result would depend on who computes what")]
    Disagreement {
        /// Whose.
        rank: usize,
        /// "model.base" and the like.
        what: &'static str,
    },
    /// Batches, learning rate, numbers that are not finite: the job's own, which would fail again from where they are.
    #[error(transparent)]
    Train(train::Error),
    /// An encoded picture that this worker had set aside.
    #[error("{0}")]
    Posterior(String),
    /// Anything else, of the part that says it.
    #[error("{0}")]
    Work(Box<dyn Blame>),
    /// A task of this worker died.
    #[error("a part of the worker ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// Asked to end: not a failure.
    #[error("stopped on request")]
    Stopped,
}

impl<E: Blame> From<E> for Error {
    fn from(error: E) -> Self {
        Self::Work(Box::new(error))
    }
}

impl From<train::Error> for Error {
    fn from(error: train::Error) -> Self {
        match error {
            train::Error::Posterior { problem } => Self::Posterior(problem),
            other => Self::Train(other),
        }
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        contents::Error::File(error).into()
    }
}

impl Error {
    /// Of an engine that was asked to compute: the base model is what it computes with.
    pub fn of_engine(error: EngineError) -> Self {
        base_model::Error::Engine(error).into()
    }

    /// See [`Blame::fault`].
    pub fn fault(&self) -> Fault {
        match self {
            Self::Train(error) => train_fault(error),
            Self::Work(error) => error.fault(),
            Self::Ring(_)
            | Self::Disagreement { .. }
            | Self::Posterior(_)
            | Self::Task(_)
            | Self::Stopped => Fault::Node,
        }
    }

    /// Whether all that is known is that a neighbour is gone: it, or another rank, may know why.
    pub(super) fn is_loss_of_a_neighbour(&self) -> bool {
        let Self::Ring(error) = self else { return false };
        matches!(
            error,
            ring::Error::Ring(RingError::PeerLost { .. } | RingError::Stalled { .. })
                | ring::Error::Unreachable { .. }
                | ring::Error::NotCalled { .. }
        )
    }
}

fn train_fault(error: &train::Error) -> Fault {
    use train::Error as E;
    match error {
        E::LearningRateBelowEnd { .. }
        | E::TrainingSet { .. }
        | E::Prompt { .. }
        | E::NotFinite { .. }
        | E::Checkpoint { .. } => Fault::Job,
        // Another rank sent it; the disk lost it.
        E::GradientLength { .. } | E::Posterior { .. } => Fault::Node,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_jobs_fault_and_neighbours_the_nodes() {
        let not_finite = train::Error::NotFinite { step: 9, in_a_row: 10, loss: f32::NAN };
        assert_eq!(Error::from(not_finite).fault(), Fault::Job);
        assert_eq!(Error::from(ring::Error::Replaced).fault(), Fault::Node);
        let lost = train::Error::Posterior { problem: "latents/ab: gone".to_owned() };
        let lost = Error::from(lost);
        assert_eq!((lost.fault(), lost.to_string().as_str()), (Fault::Node, "latents/ab: gone"));
        assert_eq!(
            Error::of_engine(EngineError::Gone).to_string(),
            "model.base: the engine's thread has ended"
        );
    }
}
