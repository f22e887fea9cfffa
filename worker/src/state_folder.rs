//! The worker's state folder: who it is, how often it has started, and its files. One worker per folder.

use std::{
    io,
    path::{Path, PathBuf},
};

use ringtune_shared::{
    daemon::state_lock::{self, StateLock, StateLockError},
    files::{FileError, write_atomically},
    ids::WorkerId,
};

/// File of this worker's id.
const WORKER_ID: &str = "worker-id";
/// File of its number of starts.
const INCARNATION: &str = "incarnation";
const CACHE: &str = "cache";
const LATENTS: &str = "latents";
const RING_SOCKET: &str = "ring.sock";
const VIEWS: &str = "views";
const WORK: &str = "work";
/// The certificate and its key.
pub(crate) const CREDENTIALS: &str = "credentials";
/// Models, where there is no home folder for them.
pub(crate) const MODELS: &str = "models";
/// Everything in a state folder.
const NAMES: [&str; 10] =
    [state_lock::NAME, WORKER_ID, INCARNATION, CACHE, LATENTS, RING_SOCKET, VIEWS, WORK, MODELS, CREDENTIALS];

/// Why a state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFolderError {
    /// Another worker holds the folder, or it cannot be made or locked.
    #[error(transparent)]
    Lock(#[from] StateLockError),
    /// A file cannot be read.
    #[error("state folder: {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("state folder: {0}")]
    Write(#[from] FileError),
    /// The certificate is another worker's.
    #[error(
        "security.certificate is that of worker {certified}, and {} says that this is worker {worker}: give that worker's certificate, or a folder of its own (--state-dir)",
        path.display()
    )]
    OtherWorker {
        /// The file with the id.
        path: PathBuf,
        /// The worker of the folder.
        worker: WorkerId,
        /// The worker of the certificate.
        certified: WorkerId,
    },
    /// A file holds something that this worker never wrote.
    #[error("state folder: {}: {content:?} is not {expected}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Its content.
        content: String,
        /// The expected content.
        expected: &'static str,
    },
}

/// An open, locked state folder. The lock goes with the process, however it ends.
#[derive(Debug)]
pub struct StateFolder {
    folder: PathBuf,
    worker: WorkerId,
    incarnation: u64,
    _lock: StateLock,
}

impl StateFolder {
    /// Makes the folder if need be, locks it, removes what the ranks of a killed worker left in it, reads or makes the
    /// worker's id, and counts this start.
    /// The count is on disk before this returns. `certified`: the worker that a certificate from elsewhere names, which is
    /// the one that this is.
    pub fn open(folder: &Path, certified: Option<WorkerId>) -> Result<Self, StateFolderError> {
        // 1. Ours alone.
        let lock = StateLock::take(folder, "worker", &NAMES)?;
        remove_leftovers(&work_folder_of(folder))?;
        remove_leftovers(&views_folder_of(folder))?;
        // 2. Who we are: made once, then kept.
        let id_path = folder.join(WORKER_ID);
        let worker = match read(&id_path)? {
            Some(text) => parse(&id_path, &text, "a UUID")?,
            None => {
                let worker = certified.unwrap_or_else(WorkerId::new);
                write_atomically(&id_path, format!("{worker}\n").as_bytes())?;
                worker
            }
        };
        if let Some(certified) = certified.filter(|certified| *certified != worker) {
            return Err(StateFolderError::OtherWorker { path: id_path, worker, certified });
        }
        // 3. Which start this is: the coordinator lets the newest win.
        let count_path = folder.join(INCARNATION);
        let before: u64 = match read(&count_path)? {
            Some(text) => parse(&count_path, &text, "a number")?,
            None => 0,
        };
        let incarnation = before.saturating_add(1);
        write_atomically(&count_path, format!("{incarnation}\n").as_bytes())?;
        Ok(Self { folder: folder.to_owned(), worker, incarnation, _lock: lock })
    }

    /// The worker's lasting id.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Number of the daemon's start on this folder, from 1.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Folder of fetched files.
    pub fn cache_folder(&self) -> PathBuf {
        self.folder.join(CACHE)
    }

    /// Folder of encoded pictures.
    pub fn latents_folder(&self) -> PathBuf {
        self.folder.join(LATENTS)
    }

    /// The local socket of rings.
    pub fn ring_socket(&self) -> PathBuf {
        self.folder.join(RING_SOCKET)
    }

    /// Folder of links to models in use. Empty when the state folder is opened.
    pub fn views_folder(&self) -> PathBuf {
        views_folder_of(&self.folder)
    }

    /// Folder of ranks' files before their upload. Empty when the state folder is opened.
    pub fn work_folder(&self) -> PathBuf {
        work_folder_of(&self.folder)
    }
}

fn views_folder_of(folder: &Path) -> PathBuf {
    folder.join(VIEWS)
}

fn work_folder_of(folder: &Path) -> PathBuf {
    folder.join(WORK)
}

/// A worker that was killed could not remove what its ranks wrote, checkpoints and pictures of a job that nobody goes on
/// with from here, nor its links to files that it had open. What of it was not sent yet the coordinator would refuse, as of an epoch
/// that is over. No result is lost by that: whoever goes on makes them. A checkpoint is sent behind all files of the steps up to it.
fn remove_leftovers(leftovers: &Path) -> Result<(), StateFolderError> {
    match std::fs::remove_dir_all(leftovers) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StateFolderError::Io { path: leftovers.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<Option<String>, StateFolderError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StateFolderError::Io { path: path.to_owned(), source }),
    }
}

fn parse<T: std::str::FromStr>(
    path: &Path,
    text: &str,
    expected: &'static str,
) -> Result<T, StateFolderError> {
    text.trim().parse().map_err(|_| StateFolderError::Damaged {
        path: path.to_owned(),
        content: text.chars().take(80).collect(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_stays_and_each_start_counts() {
        let folder = tempfile::tempdir().unwrap();
        let first = StateFolder::open(folder.path(), None).unwrap();
        let (worker, incarnation) = (first.worker(), first.incarnation());
        assert_eq!(incarnation, 1);
        drop(first);
        let second = StateFolder::open(folder.path(), None).unwrap();
        assert_eq!((second.worker(), second.incarnation()), (worker, 2));
    }

    #[test]
    fn a_certificate_from_elsewhere_says_who_a_new_worker_is() {
        let folder = tempfile::tempdir().unwrap();
        let id = WorkerId::new();
        let open = |certified| StateFolder::open(folder.path(), certified).map(|state| state.worker());
        assert_eq!(open(Some(id)).unwrap(), id);
        assert_eq!((open(Some(id)).unwrap(), open(None).unwrap()), (id, id));
        let other = open(Some(WorkerId::new()));
        assert!(matches!(other, Err(StateFolderError::OtherWorker { worker, .. }) if worker == id));
    }

    #[test]
    fn what_a_killed_worker_left_is_removed_by_the_next_and_by_nobody_before() {
        let folder = tempfile::tempdir().unwrap();
        let first = StateFolder::open(folder.path(), None).unwrap();
        let left = first.work_folder().join("job-1/checkpoint-9.safetensors");
        std::fs::create_dir_all(left.parent().unwrap()).unwrap();
        std::fs::write(&left, b"big").unwrap();
        // A refused worker disturbs nothing of the one that works there.
        assert!(StateFolder::open(folder.path(), None).is_err());
        assert!(left.exists());
        drop(first);
        let second = StateFolder::open(folder.path(), None).unwrap();
        assert!(!second.work_folder().join("job-1").exists());
    }

    #[test]
    fn a_second_worker_on_the_folder_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let _first = StateFolder::open(folder.path(), None).unwrap();
        assert!(matches!(
            StateFolder::open(folder.path(), None),
            Err(StateFolderError::Lock(StateLockError::Taken { .. }))
        ));
    }

    #[test]
    fn a_damaged_identity_is_named_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("worker-id"), "nobody").unwrap();
        let error = StateFolder::open(folder.path(), None).unwrap_err();
        assert!(matches!(error, StateFolderError::Damaged { path, .. } if path.ends_with("worker-id")));
    }
}
