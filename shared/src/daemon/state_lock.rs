//! The lock on a state folder: one daemon per folder.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
};

use super::private;

/// The lock's file in the folder.
pub const NAME: &str = "lock";

/// Why a state folder cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StateLockError {
    /// Another daemon holds the lock.
    #[error(
        "another {daemon} runs on the state folder {}; give this one its own with --state-dir",
        folder.display()
    )]
    Taken {
        /// The kind of daemon, for messages.
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
    /// Makes the folder if need be, locks it, and closes it to others on this machine ([`private`]). Blocks.
    ///
    /// `daemon` is what texts call the program: "coordinator", "worker"; `names`: all that it keeps in the folder.
    ///
    /// # Errors
    /// Another daemon has it; the file system's.
    pub fn take(folder: &Path, daemon: &'static str, names: &[&str]) -> Result<Self, StateLockError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StateLockError::Io { path, source }
        };
        private::make(folder).map_err(failed(folder))?;
        let path = folder.join(NAME);
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed(&path))?;
        match file.try_lock() {
            Ok(()) => {
                private::close(folder, names);
                Ok(Self { _file: file })
            }
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
        let first = StateLock::take(&path, "worker", &[NAME]).unwrap();
        let error = StateLock::take(&path, "worker", &[NAME]).unwrap_err();
        assert!(matches!(&error, StateLockError::Taken { folder, .. } if *folder == path));
        let text = error.to_string();
        assert!(text.starts_with("another worker runs on") && text.contains("--state-dir"), "{text}");
        drop(first);
        assert!(StateLock::take(&path, "worker", &[NAME]).is_ok());
    }

    #[test]
    fn a_file_is_no_state_folder() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = StateLock::take(file.path(), "coordinator", &[NAME]).unwrap_err();
        assert!(matches!(error, StateLockError::Io { path, .. } if path == file.path()));
    }
}
