//! What can go wrong when a job's files are written.

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
        /// What the format's own reader says.
        problem: String,
    },
}

impl Error {
    /// An error of the operating system, with a full disk (or quota) told from the rest.
    pub fn writing(file: &Path, source: std::io::Error) -> Self {
        let file = file.to_path_buf();
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::DiskFull { file },
            _ => Self::Write { file, source },
        }
    }
}
