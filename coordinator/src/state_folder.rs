//! The coordinator's state folder: the database, the contents, the CA. One coordinator per folder.

use std::path::{Path, PathBuf};

use ringtune_shared::daemon::state_lock::{self, StateLock, StateLockError};

/// Jobs and their history: the database's file, in backups too.
pub const DATABASE: &str = "ringtune.sqlite";
/// Uploads and artifacts: their folder, in backups too.
pub const CONTENTS: &str = "contents";
/// The folder of the cluster's own CA, in backups too.
pub const AUTHORITY: &str = "authority";
/// The folder of an admin's certificate.
const ADMIN: &str = "admin";
/// All that is in a state folder; of the database also its logs, and what was laid aside.
const NAMES: [&str; 5] = [state_lock::NAME, "ringtune.sqlite*", CONTENTS, AUTHORITY, ADMIN];

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
        let lock = StateLock::take(folder, "coordinator", &NAMES)?;
        Ok(Self { folder: folder.to_owned(), _lock: lock })
    }

    /// Whether a coordinator has kept anything in this folder.
    pub fn has_something(folder: &Path) -> bool {
        [DATABASE, CONTENTS].iter().any(|name| folder.join(name).exists())
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Jobs and their history.
    pub fn database(&self) -> PathBuf {
        self.folder.join(DATABASE)
    }

    /// The cluster's own CA.
    pub fn authority(&self) -> PathBuf {
        self.folder.join(AUTHORITY)
    }

    /// The certificate of an admin on this machine.
    pub fn admin(&self) -> PathBuf {
        self.folder.join(ADMIN)
    }

    /// Uploads and artifacts.
    pub fn contents(&self) -> PathBuf {
        self.folder.join(CONTENTS)
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
