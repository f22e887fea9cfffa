//! Why a rank's work ends early. The text reaches the user as the job's reason.

use std::time::Duration;

use ringtune_shared::{
    files::FileError,
    ids::ContentHash,
    ring::{Diverged, RingError},
    state::StateError,
};

use crate::{
    base_model, contents,
    engine::EngineError,
    fault::{Blame, Fault},
    ring::{self, RankRing, Trouble},
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
        /// The rank.
        rank: usize,
        /// "model.base" and the like.
        what: &'static str,
    },
    /// Ranks that took the same steps and have other states.
    #[error(transparent)]
    Diverged(Diverged),
    /// A state that another rank gave does not come back as it was.
    #[error("a restored state has the hash {found}; another rank gave that with {expected}")]
    Restored {
        /// Of what this rank has now.
        found: ContentHash,
        /// Of what came.
        expected: ContentHash,
    },
    /// A state cannot be read.
    #[error("the state: {0}")]
    State(#[from] StateError),
    /// Anything else, of the part that says it.
    #[error("{0}")]
    Work(Box<dyn Blame>),
    /// The engine does not come back from a computation.
    #[error("the engine has made no progress for {} s, far more than usual: this worker ends", limit.as_secs())]
    Hung {
        /// For how long.
        limit: Duration,
    },
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
            Self::Work(error) => error.fault(),
            // Whichever rank is wrong, this ring cannot go on.
            Self::Diverged(_) => Fault::Job,
            Self::Ring(_) => Fault::Link,
            // This one has other files than rank 0, or took in what it was not given, or fails by itself.
            Self::Disagreement { .. }
            | Self::Restored { .. }
            | Self::State(_)
            | Self::Hung { .. }
            | Self::Task(_) => Fault::Node,
            Self::Stopped => Fault::Nobody,
        }
    }

    /// The trouble with another rank of the ring. None: not a ring's error.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let Self::Ring(error) = self else { return None };
        RankRing::trouble_of(error)
    }

    /// See [`Blame::would_come_again`].
    pub(super) fn would_come_again(&self) -> bool {
        matches!(self, Self::Work(error) if error.would_come_again())
    }

    /// Whether all that is known is that a neighbour is gone: it, or another rank, may know why.
    pub(super) fn is_loss_of_a_neighbour(&self) -> bool {
        let Self::Ring(error) = self else { return false };
        matches!(
            error,
            ring::Error::Ring(RingError::PeerLost { .. } | RingError::Stalled { .. })
                | ring::Error::Unreachable { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train;

    #[test]
    fn a_part_keeps_its_words_and_its_fault() {
        let gradients = String::new();
        let not_finite = train::Error::NotFinite { step: 9, in_a_row: 10, loss: f32::NAN, gradients };
        let error = Error::from(not_finite);
        assert!(error.fault() == Fault::Job && error.would_come_again());
        let lost = Error::from(train::Error::Posterior { problem: "latents/ab: gone".to_owned() });
        assert!(lost.fault() == Fault::Node && !lost.would_come_again());
        assert_eq!(lost.to_string(), "latents/ab: gone");
        assert_eq!(Error::from(ring::Error::Replaced).fault(), Fault::Link);
        assert_eq!(
            Error::of_engine(EngineError::Gone).to_string(),
            "model.base: the engine's thread has ended"
        );
    }
}
