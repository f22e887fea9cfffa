//! The coordinator's state folder: the database, the contents, the CA. One coordinator per folder.

use std::path::{Path, PathBuf};

use ringtune_shared::daemon::state_lock::{StateLock, StateLockError};

/// An open, locked state folder. The lock goes with the process, however it ends.
#[derive(Debug)]
pub struct StateFolder {
    folder: PathBuf,
    _lock: StateLock,
}

impl StateFolder {
    /// Makes the folder if need be and locks it. Blocks.
    ///
    /// # Errors
    /// Another coordinator has it; the file system's.
    pub fn open(folder: &Path) -> Result<Self, StateLockError> {
        let lock = StateLock::take(folder, "coordinator")?;
        Ok(Self { folder: folder.to_owned(), _lock: lock })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Jobs and their history.
    pub fn database(&self) -> PathBuf {
        self.folder.join("ringtune.sqlite")
    }

    /// The cluster's own CA.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("authority")
    }

    /// The certificate of an admin on this machine.
    pub fn admin(&self) -> PathBuf {
        self.folder.join("admin")
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
        let _first = StateFolder::open(folder.path()).unwrap();
        assert!(matches!(StateFolder::open(folder.path()), Err(StateLockError::Taken { .. })));
    }
}
