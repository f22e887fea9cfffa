//! Errors of writing a job's files.

use std::path::{Path, PathBuf};

/// Each message names the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No space is left for the file; what was there under its name before is untouched.
    #[error("{}: the disk is full", file.display())]
    DiskFull {
        /// The file.
        file: PathBuf,
    },
    /// The file cannot be written for another reason; what was there under its name before is untouched.
    #[error("{}: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Numbers that do not fill the shape they were given with.
    #[error("tensor {name:?}: {found} numbers do not fill the shape {shape:?}")]
    Shape {
        /// The tensor's name.
        name: String,
        /// Numbers given.
        found: usize,
        /// Shape given.
        shape: Vec<usize>,
    },
    /// Content that the safetensors format cannot hold.
    #[error("{}: not a valid safetensors file: {problem}", file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// The message of the format's own reader.
        problem: String,
    },
    /// Learned numbers that are NaN or infinite: no file of them is written.
    #[error(
        "{}: {count} of {total} learned numbers are not finite, the first in vector {vector}, column {column}",
        file.display()
    )]
    NotFinite {
        /// The file that they were for.
        file: PathBuf,
        /// Their number.
        count: usize,
        /// Of how many.
        total: usize,
        /// Row of the first, from 0.
        vector: usize,
        /// Its column, from 0.
        column: usize,
    },
    /// A parameter with numbers that are NaN or infinite: no file of it is left.
    #[error("{}: a number of {tensor:?} is not finite", file.display())]
    Broken {
        /// The file that it was for.
        file: PathBuf,
        /// The parameter.
        tensor: String,
    },
    /// A file that holds something else than was written: it is not published.
    #[error("{}: read back after writing: {problem}", file.display())]
    ReadBack {
        /// The file.
        file: PathBuf,
        /// The difference.
        problem: String,
    },
}

impl Error {
    /// Replaces the path by the one that users know.
    pub(super) fn about(mut self, shown: PathBuf) -> Self {
        match &mut self {
            Self::DiskFull { file }
            | Self::Write { file, .. }
            | Self::Format { file, .. }
            | Self::NotFinite { file, .. }
            | Self::Broken { file, .. }
            | Self::ReadBack { file, .. } => *file = shown,
            Self::Shape { .. } => (),
        }
        self
    }

    /// An error of the operating system, with a full disk (or quota) told from the rest.
    pub fn writing(file: &Path, source: std::io::Error) -> Self {
        let file = file.to_path_buf();
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::DiskFull { file },
            _ => Self::Write { file, source },
        }
    }
}
