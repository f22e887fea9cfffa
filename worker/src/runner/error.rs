//! Why a rank's work ends early. The text reaches the user as the job's reason.

use std::path::PathBuf;

use ringtune_shared::{
    captions::CaptionFileError, files::FileError, ids::IdError, job::SpecError, manifest::ManifestError,
    ring::RingError,
};
use tonic::{Code, Status};

use crate::{data, engine::EngineError, output, ring, train};

/// Each names the job's field, the file or the neighbour it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// One image, tokenizer, tokens.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// The checkpoint, or libtorch.
    #[error("model.base: {0}")]
    Engine(#[from] EngineError),
    /// Fetching the checkpoint.
    #[error("model.base: {0}")]
    Source(#[from] ringtune_sources::Error),
    /// The job itself.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Batches, learning rate, numbers that are not finite.
    #[error(transparent)]
    Train(train::Error),
    /// An encoded picture that this worker had set aside.
    #[error("{0}")]
    Posterior(String),
    /// Files of the job.
    #[error(transparent)]
    Output(#[from] output::Error),
    /// Files of the worker.
    #[error(transparent)]
    File(#[from] FileError),
    /// The neighbours.
    #[error("ring: {0}")]
    Ring(#[from] ring::Error),
    /// A caption file beside a picture.
    #[error(transparent)]
    Caption(#[from] CaptionFileError),
    /// The manifest of the images.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Not a content URI.
    #[error(transparent)]
    ContentUri(#[from] IdError),
    /// What stands behind a field of the job cannot be used.
    #[error("{field}: {source}")]
    InField {
        /// `section.key` of the job.
        field: String,
        /// Why.
        source: Box<RankError>,
    },
    /// The embedding that a concept starts from.
    #[error("{field}: {problem}")]
    Initializer {
        /// `section.key` of the job.
        field: String,
        /// What was given and what is allowed.
        problem: String,
    },
    /// A field that only a worker can check.
    #[error("{field}: {problem}")]
    Field {
        /// `section.key` of the job.
        field: &'static str,
        /// What was given and what is allowed.
        problem: String,
    },
    /// Ranks that would not compute the same.
    #[error("rank {rank} has another {what} than rank 0: the job's result would depend on who computes what")]
    Disagreement {
        /// Whose.
        rank: usize,
        /// "model.base" and the like.
        what: &'static str,
    },
    /// A drawn picture that cannot be kept.
    #[error("{}: {problem}", path.display())]
    Picture {
        /// The file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// Reading or writing a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The coordinator gave a file that is not what was asked for.
    #[error("{uri}: the coordinator sent {problem}")]
    WrongContent {
        /// What was asked for.
        uri: String,
        /// What came.
        problem: String,
    },
    /// The coordinator refused, and would again.
    #[error("{what}: the coordinator answered {code}: {message}")]
    Refused {
        /// What was asked.
        what: String,
        /// gRPC code.
        code: Code,
        /// The coordinator's words.
        message: String,
    },
    /// A task of this worker died.
    #[error("a part of the worker ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The job could not be written down.
    #[error("job.toml: {0}")]
    JobFile(String),
    /// Asked to end: not a failure.
    #[error("stopped on request")]
    Stopped,
}

impl From<train::Error> for RankError {
    fn from(error: train::Error) -> Self {
        match error {
            train::Error::Posterior { problem } => Self::Posterior(problem),
            other => Self::Train(other),
        }
    }
}

impl RankError {
    /// The same, blamed on a field of the job, if it is what the field's value leads to.
    pub(super) fn in_field(self, field: &str) -> Self {
        match self {
            Self::Data(_) | Self::Caption(_) | Self::Manifest(_) | Self::ContentUri(_) => {
                Self::InField { field: field.to_owned(), source: Box::new(self) }
            }
            other => other,
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

    pub(super) fn refused(what: &str, status: &Status) -> Self {
        Self::Refused { what: what.to_owned(), code: status.code(), message: status.message().to_owned() }
    }
}
