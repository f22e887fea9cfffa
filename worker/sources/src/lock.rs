//! Locks between processes: flock, which the system lets go of when a process ends, however it ends.
//!
//! Python's huggingface_hub locks the same files in the same way, so that it and we do not fetch one thing twice.

use std::{
    fs::{File, OpenOptions, TryLockError},
    path::Path,
    time::Duration,
};

use crate::Error;

/// Interval of tries at a taken lock. Its holder is downloading, which takes longer.
const RETRY: Duration = Duration::from_millis(100);

/// A lock that is held until it is dropped.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Shared.
    Shared,
    /// Alone.
    Exclusive,
}

impl FileLock {
    /// The lock, if it is free. Blocks on the disk only.
    pub(crate) fn try_take(path: &Path, mode: Mode) -> Result<Option<Self>, Error> {
        let failed = || Error::io(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed())?;
        let locked = match mode {
            Mode::Shared => file.try_lock_shared(),
            Mode::Exclusive => file.try_lock(),
        };
        match locked {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(failed()(source)),
        }
    }

    /// Waits for the lock that somebody holds who makes `watched`; says now and then how many bytes that has.
    pub(crate) async fn take(
        path: &Path,
        mode: Mode,
        watched: &Path,
        mut waiting: impl FnMut(u64),
    ) -> Result<Self, Error> {
        loop {
            let (tried, watched) = (path.to_owned(), watched.to_owned());
            let trying = move || match Self::try_take(&tried, mode)? {
                Some(lock) => Ok::<_, Error>(Ok(lock)),
                None => Ok(Err(std::fs::metadata(watched).map_or(0, |about| about.len()))),
            };
            match ringtune_shared::tasks::spawn_blocking(trying).await?? {
                Ok(lock) => return Ok(lock),
                Err(bytes) => waiting(bytes),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}
