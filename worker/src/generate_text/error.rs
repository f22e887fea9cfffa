//! Errors of `generate-text`.

use std::{io, path::PathBuf};

use super::sampling::NotFinite;
use crate::engine::EngineError;

/// Each message names the option or the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option's value cannot be used.
    #[error("{option}: {problem}")]
    Option {
        /// As it is typed.
        option: &'static str,
        /// The given and the allowed value.
        problem: String,
    },
    /// The prompt cannot be read.
    #[error("--prompt-file {}: {problem}", file.display())]
    Prompt {
        /// As it is given.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The tokenizer's files.
    #[error(transparent)]
    Text(#[from] ringtune_text::Error),
    /// The tokenizer has tokens that the model has not.
    #[error(
        "{}: the tokenizer gives the token {token}, the model has those from 0 to {}: they are not of one model",
        folder.display(), vocabulary - 1
    )]
    Vocabulary {
        /// Of both.
        folder: PathBuf,
        /// Its id.
        token: i64,
        /// The model's number of tokens.
        vocabulary: usize,
    },
    /// The model cannot be brought here.
    #[error("MODEL: {0}")]
    Model(#[from] ringtune_sources::Error),
    /// The engine could not load the model or compute with it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The model gives no logits to draw by.
    #[error(transparent)]
    NotFinite(#[from] NotFinite),
    /// The output or a signal failed.
    #[error("cannot print the text: {0}")]
    Output(#[from] io::Error),
    /// Somebody asked to stop before there was any text.
    #[error("stopped before the first token")]
    Stopped,
    /// A part of the work ended before its time.
    #[error("a part of the work ended early: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Error {
    /// Whether the command line is wrong.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Option { .. })
    }

    /// Whether nobody reads any more.
    pub(super) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
