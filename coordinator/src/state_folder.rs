//! The coordinator's state folder: the database and the contents. One coordinator per folder.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
};

/// Why a state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFolderError {
    /// Another coordinator holds the lock.
    #[error(
        "another coordinator runs on the state folder {}; give this one its own with --state-dir",
        folder.display()
    )]
    Taken {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder cannot be made or locked.
    #[error("state folder: {}: {source}; give another one with --state-dir", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// An open, locked state folder. The lock goes with the process, however it ends.
#[derive(Debug)]
pub struct StateFolder {
    folder: PathBuf,
    _lock: File,
}

impl StateFolder {
    /// Makes the folder if need be and locks it. Blocks.
    ///
    /// # Errors
    /// Another coordinator has it; the file system's.
    pub fn open(folder: &Path) -> Result<Self, StateFolderError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StateFolderError::Io { path, source }
        };
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        let path = folder.join("lock");
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed(&path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { folder: folder.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(StateFolderError::Taken { folder: folder.to_owned() }),
            Err(TryLockError::Error(source)) => Err(failed(&path)(source)),
        }
    }

    /// Jobs and their history.
    pub fn database(&self) -> PathBuf {
        self.folder.join("ringtune.sqlite")
    }

    /// Uploads and artifacts.
    pub fn contents(&self) -> PathBuf {
        self.folder.join("contents")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_coordinator() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/state");
        let first = StateFolder::open(&path).unwrap();
        assert!(matches!(StateFolder::open(&path), Err(StateFolderError::Taken { .. })));
        drop(first);
        assert!(StateFolder::open(&path).is_ok());
    }
}
