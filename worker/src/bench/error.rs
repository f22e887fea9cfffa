//! Errors of `bench`.

use std::{io, path::PathBuf};

use crate::engine::EngineError;

/// Each message names the option, file or folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option's value does not fit the others, the model or the machine.
    #[error("{option}: {problem}")]
    Option {
        /// The flag.
        option: &'static str,
        /// The given and the allowed value.
        problem: String,
    },
    /// It is no job that a worker would take.
    #[error(transparent)]
    Job(#[from] ringtune_shared::job::SpecError),
    /// The model is no model.
    #[error("MODEL: {0}")]
    Model(EngineError),
    /// The library failed at its work.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The trace cannot be written.
    #[error("--profile {}: {source}", file.display())]
    Trace {
        /// Its file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// stdout cannot be written.
    #[error("cannot write to stdout: {0}")]
    Output(#[from] io::Error),
    /// A part of the program ended before its answer.
    #[error("a part of the program ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Error {
    /// Whether the command line is wrong, not what it is about.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Option { .. } | Self::Job(_))
    }
}
