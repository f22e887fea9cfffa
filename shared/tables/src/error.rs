//! Why captions cannot be used.

use std::{io, path::PathBuf};

use ringtune_shared::captions::CaptionError;

/// A file of captions that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the caption file {}: {problem}", path.display())]
pub struct CaptionFileError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub problem: CaptionFileProblem,
}

/// See [`CaptionFileError`].
#[derive(Debug, thiserror::Error)]
pub enum CaptionFileProblem {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// Its text is not a caption.
    #[error(transparent)]
    Caption(#[from] CaptionError),
    /// It is not as a metadata file has to be, in the line that this begins with, or does not agree with another file.
    #[error("{0}")]
    Wrong(String),
}
