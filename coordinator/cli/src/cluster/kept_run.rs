//! What a run leaves whose job's files could not be saved, whatever it was that ended it.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use ringtune_shared::files::write_atomically;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    COORDINATOR_LABEL, ClusterError, WORKER_LABEL,
    places::{is_dead, lock_file, runs_folder},
};

/// What the run of a folder is about.
const RECORD: &str = "run.json";
pub(super) const RUN_PREFIX: &str = "run-";
const KEPT_PREFIX: &str = "kept-";
/// More are counted only.
const MOST_SHOWN: usize = 3;

/// The job of a run, in its folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// At the run's own coordinator.
    pub job_id: Uuid,
    /// The job's name.
    pub name: String,
    /// Where its files were to be saved.
    pub output_dir: PathBuf,
    /// The option that says where such a job goes on; none: it has no checkpoints.
    pub resume_option: Option<String>,
    /// The first step of a job that goes on from a checkpoint.
    pub first_step: Option<u64>,
}

impl RunRecord {
    /// Writes it into a run's folder.
    pub(super) fn write(&self, folder: &Path) -> Result<(), ClusterError> {
        let path = folder.join(RECORD);
        let failed = |source| ClusterError::File { doing: "cannot write", path: path.clone(), source };
        let text = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        write_atomically(&path, &text).map_err(|error| failed(error.cause))
    }

    /// That of a folder, if it has one.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder.join(RECORD)).ok()?).ok()
    }
}

/// The folder of a run that ended before its job's files were saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRun {
    /// Where it is.
    pub folder: PathBuf,
    /// Its job; none: an earlier release kept it.
    pub record: Option<RunRecord>,
}

impl KeptRun {
    /// Gives a run's folder a name that later runs leave alone. What its workers had is fetched anew elsewhere.
    pub(super) fn keep(folder: &Path) -> io::Result<Self> {
        for entry in fs::read_dir(folder)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(WORKER_LABEL) && entry.path().is_dir() {
                // What stays costs room and nothing else.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let record = RunRecord::read(folder);
        let name = record.as_ref().map_or_else(Uuid::new_v4, |record| record.job_id);
        let kept = folder.with_file_name(format!("{KEPT_PREFIX}{name}"));
        fs::rename(folder, &kept)?;
        Ok(Self { folder: kept, record })
    }

    /// The one in this folder.
    ///
    /// # Errors
    /// There is none.
    pub fn at(folder: &Path) -> Result<Self, ClusterError> {
        if folder.join(COORDINATOR_LABEL).is_dir() {
            return Ok(Self { folder: folder.to_owned(), record: RunRecord::read(folder) });
        }
        let source = io::Error::new(io::ErrorKind::NotFound, "it is not the folder of a run");
        Err(ClusterError::File { doing: "cannot recover", path: folder.to_owned(), source })
    }

    /// All that are left on this machine and known to be.
    pub fn all() -> Vec<Self> {
        Self::all_in(&runs_folder())
    }

    /// As [`Self::all`], with the runs that were killed since the last one.
    pub fn settled() -> Vec<Self> {
        let parent = runs_folder();
        settle(&parent);
        Self::all_in(&parent)
    }

    pub(super) fn all_in(parent: &Path) -> Vec<Self> {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let kept = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(KEPT_PREFIX));
        let mut all: Vec<Self> = kept.filter_map(|entry| Self::at(&entry.path()).ok()).collect();
        all.sort_by(|one, other| one.folder.cmp(&other.folder));
        all
    }

    /// Its job's id.
    pub fn job_id(&self) -> Option<Uuid> {
        let by_name = || self.folder.file_name()?.to_str()?.strip_prefix(KEPT_PREFIX)?.parse().ok();
        self.record.as_ref().map(|record| record.job_id).or_else(by_name)
    }

    /// Nobody else uses it as long as the returned file is open.
    ///
    /// # Errors
    /// Somebody does.
    pub fn lock(&self) -> Result<File, ClusterError> {
        let in_use = || ClusterError::InUse { folder: self.folder.clone() };
        if !is_dead(&self.folder) {
            return Err(in_use());
        }
        let failed =
            |source| ClusterError::File { doing: "cannot use the folder", path: self.folder.clone(), source };
        let lock = lock_file(&self.folder).map_err(failed)?;
        lock.try_lock().map_err(|_| in_use())?;
        Ok(lock)
    }

    /// Its files are saved: it goes.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove(self) -> Result<(), ClusterError> {
        fs::remove_dir_all(&self.folder).map_err(|source| ClusterError::File {
            doing: "cannot remove",
            path: self.folder,
            source,
        })
    }

    /// What people are told of it.
    pub fn how_to_go_on(&self) -> String {
        let folder = self.folder.display();
        let Some(RunRecord { name, output_dir, resume_option, .. }) = &self.record else {
            return format!(
                "a run ended before its files were saved; {folder} has what there was; to save it:\n  \
                 ringtune recover {folder} -o DIR"
            );
        };
        let mut text = format!(
            "the run of {name:?} ended before its files were saved; {folder} has what there was; to save it in {}:\n  \
             ringtune recover",
            output_dir.display()
        );
        if let Some(option) = resume_option {
            text.push_str(&format!(
                "\nand then, to go on from its newest checkpoint, run it again with:\n  -o {} --set {option}=latest",
                output_dir.display()
            ));
        }
        text
    }

    /// What people are told of all that are left, if there are any.
    pub fn remark_of_all(all: &[Self]) -> Option<String> {
        let mut texts: Vec<String> = all.iter().take(MOST_SHOWN).map(Self::how_to_go_on).collect();
        match all.len() {
            0 => return None,
            1..=MOST_SHOWN => {}
            many => texts.push(format!("and {} more, which `ringtune recover` saves too", many - MOST_SHOWN)),
        }
        Some(texts.join("\n"))
    }
}

/// Settles earlier runs, as each new run does, if there are any.
fn settle(parent: &Path) {
    if parent.is_dir()
        && let Ok(lock) = lock_file(parent)
        && lock.lock().is_ok()
    {
        settle_dead_runs(parent);
    }
}

/// Removes the folders of runs that no process holds any more, but keeps those that have a job's files.
pub(super) fn settle_dead_runs(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let (folder, is_run) = (entry.path(), entry.file_name().to_string_lossy().starts_with(RUN_PREFIX));
        if !is_run || !is_dead(&folder) {
            continue;
        }
        // What cannot be done now is tried again by the next run.
        let _ = match RunRecord::read(&folder) {
            Some(_) => KeptRun::keep(&folder).map(drop),
            None => fs::remove_dir_all(&folder),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_told_of_all_that_is_left_and_shown_a_few() {
        let run = |number: u128| KeptRun {
            folder: format!("/runs/kept-{}", Uuid::from_u128(number)).into(),
            record: (number > 1).then(|| RunRecord {
                job_id: Uuid::from_u128(number),
                name: format!("job-{number}"),
                output_dir: "/out".into(),
                resume_option: (number > 2).then(|| "train.resume_from_checkpoint".to_owned()),
                first_step: None,
            }),
        };
        assert_eq!(KeptRun::remark_of_all(&[]), None);
        let all: Vec<KeptRun> = (1..=5).map(run).collect();
        assert!(all.iter().zip(1..).all(|(run, number)| run.job_id() == Some(Uuid::from_u128(number))));
        let text = KeptRun::remark_of_all(&all).expect("some");
        let says = [
            &format!("ringtune recover {} -o DIR", all[0].folder.display()),
            "\"job-2\"",
            "-o /out --set train.resume_from_checkpoint=latest",
            "and 2 more",
        ];
        assert!(says.iter().all(|part| text.contains(part)) && !text.contains("job-4"), "{text}");
    }
}
