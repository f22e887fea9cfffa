//! Folders for the daemons' state and logs: for `run` as long as nothing is in them that is nowhere else, kept for `up`.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::{
    ClusterError,
    kept_run::{KeptRun, RUN_PREFIX, RunRecord, settle_dead_runs},
    places::{is_dead, lock_file, runs_folder, state_home},
};
use crate::output::remark;

/// A folder of one run, removed when dropped, unless there is a job whose files are not saved yet: then it is kept, and
/// said where ([`KeptRun`]). So it is with what killed runs left behind, by the next one.
#[derive(Debug)]
pub struct RunFolder {
    /// Taken out where it is kept.
    folder: Option<TempDir>,
    path: PathBuf,
    /// There is a job whose files are not saved yet.
    has_job: bool,
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
        Self::create_in(&runs_folder())
    }

    fn create_in(parent: &Path) -> Result<Self, ClusterError> {
        let failed =
            |source| ClusterError::File { doing: "cannot make a folder in", path: parent.to_owned(), source };
        fs::create_dir_all(parent).map_err(failed)?;
        // Held while folders come and go, so that nobody takes a folder for a dead run's before its own
        // lock is there.
        let parent_lock = lock_file(parent).map_err(failed)?;
        parent_lock.lock().map_err(failed)?;
        settle_dead_runs(parent);
        let folder = tempfile::Builder::new().prefix(RUN_PREFIX).tempdir_in(parent).map_err(failed)?;
        let lock = lock_file(folder.path()).map_err(failed)?;
        lock.try_lock().map_err(|error| failed(error.into()))?;
        let path = folder.path().to_owned();
        Ok(Self { folder: Some(folder), path, has_job: false, _lock: lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on the folder has a job's files, which are nowhere else: whatever becomes of this process, they are kept.
    pub fn holds(&mut self, job: &RunRecord) -> Result<(), ClusterError> {
        self.has_job = true;
        job.write(&self.path)
    }

    /// All of the job's files are saved elsewhere.
    pub fn is_saved(&mut self) {
        self.has_job = false;
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.has_job {
            return;
        }
        // Where it cannot get another name the next run tries again.
        let folder = self.folder.take().map(TempDir::keep).unwrap_or_else(|| self.path.clone());
        match KeptRun::keep(&folder) {
            Ok(kept) => remark(&kept.how_to_go_on()),
            Err(source) => remark(
                &ClusterError::File { doing: "cannot keep the folder", path: folder, source }.to_string(),
            ),
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

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn record() -> RunRecord {
        RunRecord {
            job_id: Uuid::from_u128(7),
            name: "toy".to_owned(),
            output_dir: "/out".into(),
            resume_option: Some("train.resume_from_checkpoint".to_owned()),
            first_step: None,
        }
    }

    #[test]
    fn a_run_removes_what_dead_runs_left_and_nothing_else() {
        let parent = tempfile::tempdir().expect("folder");
        let living = RunFolder::create_in(parent.path()).expect("first");
        // A dead run whose daemon still writes its log.
        let ending = parent.path().join("run-ending");
        fs::create_dir(&ending).expect("made");
        let log = File::create(ending.join("worker-1.log")).expect("log");
        log.try_lock().expect("locked");
        // A dead run that never had a job.
        let dead = parent.path().join("run-dead");
        fs::create_dir_all(dead.join("coordinator")).expect("made");
        fs::write(dead.join("coordinator.log"), "x").expect("log");

        let mut next = RunFolder::create_in(parent.path()).expect("second");
        assert!(living.path().is_dir() && ending.is_dir() && next.path().is_dir());
        assert!(!dead.exists());

        next.holds(&record()).expect("written");
        next.is_saved();
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists(), "a run whose job is saved removes its own folder");
        assert_eq!(KeptRun::all_in(parent.path()), []);
    }

    #[test]
    fn a_job_that_is_not_saved_is_kept_however_its_run_ends() {
        for killed in [false, true] {
            let parent = tempfile::tempdir().expect("folder");
            let mut run = RunFolder::create_in(parent.path()).expect("first");
            for daemon in ["coordinator", "worker-1"] {
                fs::create_dir(run.path().join(daemon)).expect("made");
                fs::write(run.path().join(format!("{daemon}.log")), "x").expect("log");
            }
            fs::write(run.path().join("coordinator/result"), "hours of work").expect("written");
            run.holds(&record()).expect("written");
            if killed {
                // What a process leaves that cannot clean up: its folder, without the locks.
                let folder = run.folder.take().map(TempDir::keep).expect("a folder");
                run.has_job = false;
                drop(run);
                assert!(folder.is_dir() && KeptRun::all_in(parent.path()).is_empty());
            } else {
                drop(run);
            }
            drop(RunFolder::create_in(parent.path()).expect("a later run"));
            drop(RunFolder::create_in(parent.path()).expect("another one"));
            let all = KeptRun::all_in(parent.path());
            let [kept] = all.as_slice() else { panic!("{all:?}") };
            assert_eq!(kept.record, Some(record()));
            let result = kept.folder.join("coordinator/result");
            assert_eq!(fs::read_to_string(result).expect("there"), "hours of work");
            assert!(kept.folder.join("worker-1.log").exists());
            assert!(!kept.folder.join("worker-1").exists(), "a worker's caches are nothing to keep");
        }
    }

    #[test]
    fn a_second_up_is_refused() {
        let parent = tempfile::tempdir().expect("folder");
        let first = KeptFolder::open_at(parent.path().join("up")).expect("first");
        assert!(matches!(KeptFolder::open_at(parent.path().join("up")), Err(ClusterError::InUse { .. })));
        drop(first);
        KeptFolder::open_at(parent.path().join("up")).expect("free again");
    }
}
