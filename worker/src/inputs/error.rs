//! Errors of a job's inputs.

use ringtune_shared::{ids::IdError, manifest::ManifestError};
use ringtune_tables::captions::CaptionFileError;

use crate::{
    access, contents, data,
    fault::{Blame, Fault},
};

/// Each names the file, or the job's field.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An image, tokenizer or tokens.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// A file with captions.
    #[error(transparent)]
    Caption(#[from] CaptionFileError),
    /// The manifest of the images.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// Out of the reach of jobs on this worker.
    #[error(transparent)]
    Access(#[from] access::Refused),
    /// A source of pictures that is none.
    #[error("{0}")]
    Source(String),
    /// It cannot be fetched.
    #[error(transparent)]
    Fetch(Box<ringtune_sources::Error>),
    /// Not a content URI.
    #[error(transparent)]
    ContentUri(#[from] IdError),
    /// It does not come from the coordinator.
    #[error(transparent)]
    Contents(#[from] contents::Error),
    /// A field's value leads to something unusable.
    #[error("{field}: {source}")]
    InField {
        /// `section.key` of the job.
        field: String,
        /// Why.
        source: Box<Error>,
    },
    /// A task of this worker died.
    #[error("a part of the worker ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Error {
    /// Blames a field of the job, if the error is about what its value leads to.
    pub(crate) fn in_field(self, field: &str) -> Self {
        match self {
            Self::Data(_)
            | Self::Caption(_)
            | Self::Manifest(_)
            | Self::Source(_)
            | Self::Fetch(_)
            | Self::ContentUri(_) => Self::InField { field: field.to_owned(), source: Box::new(self) },
            other => other,
        }
    }
}

impl Blame for Error {
    fn fault(&self) -> Fault {
        match self {
            Self::Data(error) => error.fault(),
            Self::Caption(error) => error.fault(),
            Self::Access(error) => error.fault(),
            Self::Contents(error) => error.fault(),
            Self::InField { source, .. } => source.fault(),
            Self::Fetch(error) => error.fault(),
            Self::Manifest(_) | Self::Source(_) | Self::ContentUri(_) => Fault::Job,
            Self::Task(_) => Fault::Node,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_the_fault_of_what_stands_behind_it() {
        let undecodable = data::Error::ImageTooLarge { name: "a.png".to_owned(), bytes: 2, allowed: 1 };
        let error = Error::from(undecodable).in_field("data.images");
        assert_eq!(error.fault(), Fault::Job);
        assert!(error.to_string().starts_with("data.images: "), "{error}");
    }
}
