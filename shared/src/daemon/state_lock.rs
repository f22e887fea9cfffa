//! The lock on a state folder: one daemon per folder.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
};

/// Why a state folder cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StateLockError {
    /// Another daemon holds the lock.
    #[error(
        "another {daemon} runs on the state folder {}; give this one its own with --state-dir",
        folder.display()
    )]
    Taken {
        /// What runs there, in a word for users.
        daemon: &'static str,
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

/// A state folder that is ours alone while this lives. The lock goes with the process, however it ends.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Makes the folder if need be and locks it. Blocks.
    ///
    /// `daemon` is what texts call the program: "coordinator", "worker".
    ///
    /// # Errors
    /// Another daemon has it; the file system's.
    pub fn take(folder: &Path, daemon: &'static str) -> Result<Self, StateLockError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StateLockError::Io { path, source }
        };
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        let path = folder.join("lock");
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StateLockError::Taken { daemon, folder: folder.to_owned() }),
            Err(TryLockError::Error(source)) => Err(failed(&path)(source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_daemon_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/state");
        let first = StateLock::take(&path, "worker").unwrap();
        let error = StateLock::take(&path, "worker").unwrap_err();
        assert!(matches!(&error, StateLockError::Taken { folder, .. } if *folder == path));
        let text = error.to_string();
        assert!(text.starts_with("another worker runs on") && text.contains("--state-dir"), "{text}");
        drop(first);
        assert!(StateLock::take(&path, "worker").is_ok());
    }

    #[test]
    fn a_file_is_no_state_folder() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = StateLock::take(file.path(), "coordinator").unwrap_err();
        assert!(matches!(error, StateLockError::Io { path, .. } if path == file.path()));
    }
}
