//! Why text could not be made into tokens. The texts reach users.

use std::{
    io,
    path::{Path, PathBuf},
};

use ringtune_shared::files::FileError;

/// Each names the file, the folder or the option that it is about.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option whose value cannot be used.
    #[error("{option}: {problem}")]
    Option {
        /// As it is given on the command line.
        option: &'static str,
        /// The given and the allowed value.
        problem: String,
    },
    /// A file that is not what it should be.
    #[error("{}: {problem}", path.display())]
    Unusable {
        /// Its path.
        path: PathBuf,
        /// The problem, its place in the file, and what is allowed.
        problem: String,
    },
    /// A document that cannot be read.
    #[error("{place}: {problem}; --skip-broken leaves such documents out")]
    Document {
        /// The file, and the line, row or byte in it.
        place: String,
        /// The problem.
        problem: String,
    },
    /// Too few documents, or too many.
    #[error("the inputs hold {0}")]
    Documents(String),
    /// Another process works in the same folder.
    #[error("{}: another prepare-text is at work there; wait for its end, or give another --output-dir", .0.display())]
    Busy(PathBuf),
    /// Somebody asked to stop.
    #[error("stopped: {kept} of {chunks} parts are done and kept; the same command goes on with the others")]
    Stopped {
        /// Parts of the inputs that are on the disk.
        kept: usize,
        /// Number of all parts.
        chunks: usize,
    },
    /// Not enough room.
    #[error("{} has {} MB left, and {what} needs {} MB there; what is done so far is kept: the same command goes on from it",
        folder.display(), free / 1_000_000, needed / 1_000_000)]
    Room {
        /// The folder.
        folder: PathBuf,
        /// The file.
        what: String,
        /// Bytes.
        free: u64,
        /// Bytes.
        needed: u64,
    },
    /// The disk has no room left.
    #[error("cannot write {}: {cause}; what is done so far is kept: make room there, and the same command goes on", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// Whether the disk is full or the user's share of it.
        cause: io::ErrorKind,
    },
    /// A file or folder of this machine.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The failed action, such as "read".
        action: &'static str,
        /// Its file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The system gives no thread.
    #[error(
        "cannot start a thread that makes tokens: {0}; end other programs, or raise the limit on processes"
    )]
    Threads(io::Error),
    /// A file that could not be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A part of the program did not do what it always does.
    #[error("{0}: this is a fault of Ringtune's own")]
    Internal(String),
}

impl Error {
    /// Whether the command line is wrong, and nothing was begun.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Option { .. })
    }

    /// An option, or a key of a job, that cannot be what it is.
    pub fn option(option: &'static str, problem: impl Into<String>) -> Self {
        Self::Option { option, problem: problem.into() }
    }

    pub(crate) fn unusable(path: &Path, problem: impl Into<String>) -> Self {
        Self::Unusable { path: path.to_owned(), problem: problem.into() }
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

impl Error {
    /// Says of a full disk what to do about it.
    pub(crate) fn of_full_disk(self) -> Self {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        let (path, cause) = match &self {
            Self::Io { path, source, .. } => (path, source),
            Self::File(error) => (&error.path, &error.cause),
            _ => return self,
        };
        match cause.kind() {
            StorageFull | QuotaExceeded => Self::Full { path: path.clone(), cause: cause.kind() },
            _ => self,
        }
    }
}
