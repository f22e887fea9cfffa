//! The coordinator's state folder: the database, the contents, the CA. One coordinator per folder.

use std::fs;
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

    /// Whether the cluster's own CA is there: a root at least. Blocks.
    pub fn has_authority(&self) -> bool {
        let mut entries = fs::read_dir(self.authority()).into_iter().flatten().flatten();
        entries.any(|entry| entry.file_name().to_str().is_some_and(is_root))
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

/// root-0001.pem: whole files alone, and no way out of the folder.
pub(crate) fn is_root(name: &str) -> bool {
    let number = name.strip_prefix("root-").and_then(|rest| rest.strip_suffix(".pem"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
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
