//! Errors of `pipeline`.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{data, engine::EngineError, generate};

/// Each message names the file or folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder is not what it should be.
    #[error("{} {problem}", path.display())]
    Unusable {
        /// The file or folder.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// Reading or writing.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not enough space.
    #[error(
        "{} has {} MB left; the pipeline needs {} MB there", folder.display(), free / 1_000_000, needed / 1_000_000
    )]
    Space {
        /// The pipeline's folder.
        folder: PathBuf,
        /// Bytes.
        free: u64,
        /// Bytes.
        needed: u64,
    },
    /// The tokenizer.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// The options, the place of the model, or the embeddings.
    #[error(transparent)]
    Input(#[from] generate::Error),
    /// A part of the program ended before its answer.
    #[error("a part of the program ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// The model loader does not take it.
    #[error("the model cannot be read: {0}")]
    Model(#[from] EngineError),
}

impl Error {
    /// Whether the command line is wrong, not what it is about.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Input(generate::Error::Option { .. }))
    }
}

pub(super) fn failed_at(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |source| Error::Io { path: path.to_owned(), source }
}

pub(super) fn unusable(path: &Path, problem: impl Into<String>) -> Error {
    Error::Unusable { path: path.to_owned(), problem: problem.into() }
}
