//! Why a base model cannot be used.

use std::path::PathBuf;

use ringtune_shared::job::SpecError;

use crate::{
    access, contents,
    engine::EngineError,
    fault::{Blame, Fault, of_path},
};

/// Each names the job's field or the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Its location is malformed.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// It is out of the reach of jobs on this worker.
    #[error(transparent)]
    Access(#[from] access::Refused),
    /// It cannot be fetched.
    #[error("model.base: {0}")]
    Source(#[from] ringtune_sources::Error),
    /// It cannot be loaded or computed with.
    #[error("model.base: {0}")]
    Engine(#[from] EngineError),
    /// It is not what the job needs.
    #[error("{field}: {problem}")]
    Field {
        /// `section.key` of the job.
        field: &'static str,
        /// The given and the allowed value.
        problem: String,
    },
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] contents::Error),
    /// A task of this worker died.
    #[error("a part of the worker ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// A file cannot be opened.
    #[error("{field}: {}: {source}", path.display())]
    Path {
        /// `section.key` of the job.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Error {
    /// Of what a field of the job names.
    pub(crate) fn of_path(field: &'static str, error: access::OpenError) -> Self {
        let access::OpenError { path, source } = error;
        Self::Path { field, path, source }
    }
}

impl Blame for Error {
    fn fault(&self) -> Fault {
        match self {
            Self::Spec(_) | Self::Field { .. } => Fault::Job,
            Self::Source(error) => error.fault(),
            Self::Engine(error) => error.fault(),
            // Its files are read where the job says that they are.
            Self::Read(contents::Error::Io { source, .. }) => of_path(source),
            Self::Read(error) => error.fault(),
            Self::Access(error) => error.fault(),
            Self::Path { source, .. } => of_path(source),
            Self::Task(_) => Fault::Node,
        }
    }
}
