//! Errors of `pipeline`.

use std::{io, path::Path};

use ringtune_shared::model_folder::{self, ModelFolderError};

use crate::{data, engine::EngineError, generate};

/// Each message names the file or folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder.
    #[error(transparent)]
    Folder(#[from] ModelFolderError),
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
    move |source| model_folder::failed_at(path)(source).into()
}

pub(super) fn unusable(path: &Path, problem: impl Into<String>) -> Error {
    model_folder::unusable(path, problem).into()
}
