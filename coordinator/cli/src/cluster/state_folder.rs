//! Folders for the daemons' state and logs: temporary for `run`, kept for `up`.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::ClusterError;

const LOCK: &str = "lock";
const RUN_PREFIX: &str = "run-";

/// A temporary folder, removed when dropped. What killed runs left behind is removed by the next one.
#[derive(Debug)]
pub struct RunFolder {
    folder: TempDir,
    _lock: File,
}

/// The folder of `ringtune up`, ours alone until dropped.
#[derive(Debug)]
pub struct KeptFolder {
    folder: PathBuf,
    _lock: File,
}

impl RunFolder {
    /// Makes a new folder.
    pub fn create() -> Result<Self, ClusterError> {
        Self::create_in(&state_home().join("ringtune").join("runs"))
    }

    fn create_in(parent: &Path) -> Result<Self, ClusterError> {
        let failed =
            |source| ClusterError::File { doing: "cannot make a folder in", path: parent.to_owned(), source };
        fs::create_dir_all(parent).map_err(failed)?;
        // Held while folders come and go, so that nobody takes a folder for a dead run's before its own
        // lock is there.
        let parent_lock = lock_file(parent).map_err(failed)?;
        parent_lock.lock().map_err(failed)?;
        remove_dead_runs(parent);
        let folder = tempfile::Builder::new().prefix(RUN_PREFIX).tempdir_in(parent).map_err(failed)?;
        let lock = lock_file(folder.path()).map_err(failed)?;
        lock.try_lock().map_err(|error| failed(error.into()))?;
        Ok(Self { folder, _lock: lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps the folder for good, under `name`, which later runs leave alone; returns where it is.
    pub fn keep(self, name: &str) -> Result<PathBuf, ClusterError> {
        let folder = self.folder.keep();
        let kept = folder.with_file_name(name);
        match fs::rename(&folder, &kept) {
            Ok(()) => Ok(kept),
            Err(source) => Err(ClusterError::File { doing: "cannot keep the folder", path: folder, source }),
        }
    }
}

impl KeptFolder {
    /// Opens the folder, or fails when another `up` has it.
    pub fn open() -> Result<Self, ClusterError> {
        Self::open_at(state_home().join("ringtune").join("up"))
    }

    fn open_at(folder: PathBuf) -> Result<Self, ClusterError> {
        let failed =
            |source| ClusterError::File { doing: "cannot use the folder", path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(failed)?;
        // Before our own lock is taken: daemons of a killed `up` may be ending still.
        if !is_dead(&folder) {
            return Err(ClusterError::InUse { folder });
        }
        let lock = lock_file(&folder).map_err(failed)?;
        if lock.try_lock().is_err() {
            return Err(ClusterError::InUse { folder });
        }
        Ok(Self { folder, _lock: lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }
}

fn lock_file(folder: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(folder.join(LOCK))
}

/// Removes the folders of runs that no process holds any more.
fn remove_dead_runs(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let is_run = entry.file_name().to_string_lossy().starts_with(RUN_PREFIX);
        // What cannot be removed now is tried again by the next run.
        if is_run && is_dead(&entry.path()) && fs::remove_dir_all(entry.path()).is_err() {
            continue;
        }
    }
}

/// Whether neither a command nor a daemon lives in this folder: a living command holds the lock file, a
/// living daemon its log.
fn is_dead(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_lock(path))
        .all(|path| File::options().write(true).open(path).is_ok_and(|file| file.try_lock().is_ok()))
}

fn is_lock(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == LOCK)
        || path.extension().is_some_and(|extension| extension == "log")
}

/// Where programs keep their state: XDG_STATE_HOME, else ~/.local/state, else the folder for temporary files.
pub fn state_home() -> PathBuf {
    state_home_from(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

fn state_home_from(state_home: Option<OsString>, home: Option<OsString>) -> PathBuf {
    // The XDG specification says that a relative path is to be ignored.
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    state_home
        .and_then(absolute)
        .or_else(|| home.and_then(absolute).map(|home| home.join(".local/state")))
        .unwrap_or_else(std::env::temp_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_removes_what_dead_runs_left_and_nothing_else() {
        let parent = tempfile::tempdir().expect("folder");
        let living = RunFolder::create_in(parent.path()).expect("first");
        // A dead run whose daemon still writes its log.
        let ending = parent.path().join("run-ending");
        fs::create_dir(&ending).expect("made");
        let log = File::create(ending.join("worker-1.log")).expect("log");
        log.try_lock().expect("locked");
        // A dead run.
        let dead = parent.path().join("run-dead");
        fs::create_dir_all(dead.join("coordinator")).expect("made");
        fs::write(dead.join("coordinator.log"), "x").expect("log");

        let next = RunFolder::create_in(parent.path()).expect("second");
        assert!(living.path().is_dir() && ending.is_dir() && next.path().is_dir());
        assert!(!dead.exists());

        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists(), "a run removes its own folder");
    }

    #[test]
    fn what_is_kept_survives_later_runs() {
        let parent = tempfile::tempdir().expect("folder");
        let run = RunFolder::create_in(parent.path()).expect("first");
        fs::write(run.path().join("result"), "hours of work").expect("written");
        let kept = run.keep("kept-job").expect("kept");
        drop(RunFolder::create_in(parent.path()).expect("second"));
        assert_eq!(kept, parent.path().join("kept-job"));
        assert_eq!(fs::read_to_string(kept.join("result")).expect("there"), "hours of work");
    }

    #[test]
    fn a_second_up_is_refused() {
        let parent = tempfile::tempdir().expect("folder");
        let first = KeptFolder::open_at(parent.path().join("up")).expect("first");
        assert!(matches!(KeptFolder::open_at(parent.path().join("up")), Err(ClusterError::InUse { .. })));
        drop(first);
        KeptFolder::open_at(parent.path().join("up")).expect("free again");
    }

    #[test]
    fn the_state_home_follows_the_xdg_rules() {
        let home = || Some("/home/u".into());
        assert_eq!(state_home_from(Some("/s".into()), home()), PathBuf::from("/s"));
        assert_eq!(state_home_from(Some("s".into()), home()), PathBuf::from("/home/u/.local/state"));
        assert_eq!(state_home_from(None, home()), PathBuf::from("/home/u/.local/state"));
        assert_eq!(state_home_from(None, None), std::env::temp_dir());
    }
}
