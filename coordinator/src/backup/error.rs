//! Why a backup is not made, or not put back.

use std::{
    io,
    path::{Path, PathBuf},
};

use ringtune_shared::{daemon::state_lock::StateLockError, files::FileError};

use crate::store::{self, CopyFailed};

/// Nothing was changed that was there before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no coordinator's state.
    #[error("{} holds no coordinator's state: it has no ringtune.sqlite; give the folder that the coordinator was started with: --state-dir DIR", .0.display())]
    NoState(PathBuf),
    /// A backup goes into a folder of its own.
    #[error("{} is not empty: a backup needs a new or an empty folder", .0.display())]
    NotEmpty(PathBuf),
    /// A backup is put into a new state folder.
    #[error("{} is not empty: a backup is put back into a new or an empty state folder", .0.display())]
    StateNotEmpty(PathBuf),
    /// Not a backup, or one that was cut off.
    #[error("{} is no whole backup: {problem}", folder.display())]
    NotWhole {
        /// The folder.
        folder: PathBuf,
        /// What is missing or damaged.
        problem: String,
    },
    /// A form of backup that this build does not know.
    #[error("{} was made by Ringtune {version} in a form that this version does not know: install Ringtune {version}", folder.display())]
    OtherFormat {
        /// The folder.
        folder: PathBuf,
        /// Who made it.
        version: String,
    },
    /// The database.
    #[error("{}: {source}", path.display())]
    Store {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: store::Error,
    },
    /// A daemon runs on the folder.
    #[error(transparent)]
    Locked(#[from] StateLockError),
    /// A file or folder.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The disk that is written to.
    #[error("the disk that holds {} is full: what was written there for this is removed again", .0.display())]
    Full(PathBuf),
    /// A file that was to be written.
    #[error(transparent)]
    File(FileError),
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        if is_full(&error.cause) { Self::Full(error.path) } else { Self::File(error) }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Error {
    /// The user has to name another folder: exit code 2.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::NoState(_) | Self::NotEmpty(_) | Self::StateNotEmpty(_))
    }

    /// It is the state folder that is the wrong one.
    pub fn is_about_state(&self) -> bool {
        matches!(self, Self::NoState(_) | Self::StateNotEmpty(_) | Self::Locked(_))
    }

    pub(super) fn at<'path>(
        action: &'static str,
        path: &'path Path,
    ) -> impl FnOnce(io::Error) -> Self + 'path {
        move |source| {
            let path = path.to_owned();
            if is_full(&source) { Self::Full(path) } else { Self::Io { action, path, source } }
        }
    }

    /// A copy of a database that failed: who is to blame, the one that is read or the one that is written?
    pub(super) fn copy<'path>(from: &'path Path, to: &'path Path) -> impl FnOnce(CopyFailed) -> Self + 'path {
        move |failed| match failed {
            CopyFailed::Source(source) => Self::Store { path: from.to_owned(), source },
            CopyFailed::Target(store::Error::Full) => Self::Full(to.to_owned()),
            CopyFailed::Target(source) => Self::Store { path: to.to_owned(), source },
        }
    }

    pub(super) fn store(path: &Path) -> impl FnOnce(store::Error) -> Self + '_ {
        move |source| Self::Store { path: path.to_owned(), source }
    }
}
