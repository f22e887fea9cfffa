//! Errors of `prepare-text`.

use std::io;

/// Each message names the file, the place or the option.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option whose value cannot be used.
    #[error("{option}: {problem}")]
    Option {
        /// As it is given.
        option: &'static str,
        /// The given and the allowed value.
        problem: String,
    },
    /// The texts, the tokens, or the files of either.
    #[error(transparent)]
    Text(#[from] ringtune_text::Error),
    /// A bucket.
    #[error(transparent)]
    Sources(#[from] ringtune_sources::Error),
    /// The output or a signal failed.
    #[error("cannot print the result: {0}")]
    Output(#[from] io::Error),
    /// Somebody asked to stop while files were on their way.
    #[error("stopped: the same command goes on from what is done")]
    Stopped,
    /// A part of the program ended before its answer.
    #[error("a part of the program ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Error {
    /// Whether the command line is wrong, and nothing was begun.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Option { .. } => true,
            Self::Text(error) => error.is_usage(),
            _ => false,
        }
    }
}
