//! Checkpoints on this machine: the one that a job goes on from, and those that a run leaves.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use ringtune_shared::{
    checkpoint::{self, CheckpointError, OpenCheckpoint, ResumeFrom},
    ids::ContentHash,
    job::{JobSpec, parse_job_toml},
    state::{Hashing, StateError},
};

use crate::client::{Client, ClientError, FileContent};

/// A checkpoint that a job cannot go on from.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// It cannot be read.
    #[error("{field}: cannot read {}: {source}", path.display())]
    Unreadable {
        /// The job's option.
        field: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is none.
    #[error("{field}: {}: {source}", path.display())]
    Invalid {
        /// The job's option.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: CheckpointError,
    },
    /// It does not fit the job.
    #[error("{field}: {}: {problem}", path.display())]
    Refused {
        /// The job's option.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// What does not fit.
        problem: String,
    },
    /// There is no folder to look in.
    #[error(
        "{field}: got {given:?}, which is looked for in `ringtune run`'s output folder; give a file, \
         an artifact:// URI, or --resume-from JOB"
    )]
    NoFolder {
        /// The job's option.
        field: &'static str,
        /// The job's value.
        given: String,
    },
}

/// Where a job starts, once that has been looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// At step 1.
    Beginning,
    /// From what the coordinator has.
    Uploaded,
    /// From a file, which fits the job.
    From(CheckpointFile),
}

impl Start {
    /// The first step of a job that goes on from a file of this machine.
    pub fn first_step(&self) -> Option<u64> {
        match self {
            Self::From(checkpoint) => Some(checkpoint.step + 1),
            Self::Beginning | Self::Uploaded => None,
        }
    }
}

/// A checkpoint's file, which was read and checked. It may be larger than memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointFile {
    /// Where it is.
    pub path: PathBuf,
    /// Steps done.
    pub step: u64,
    size: u64,
    sha256: ContentHash,
}

impl CheckpointFile {
    /// Uploads it; returns its address. One that was changed meanwhile the coordinator refuses.
    pub async fn upload(&self, client: &Client) -> Result<String, ClientError> {
        let media_type = "application/octet-stream";
        let (path, size, sha256) = (self.path.clone(), self.size, self.sha256);
        client.upload_file(&FileContent { path, size, sha256, media_type }).await
    }
}

/// Finds what the job goes on from and checks that it is this job's; and what a user should know of the search.
///
/// `folder`: where "latest" and steps are looked for. Blocks, for as long as it takes to read a checkpoint once: its hash
/// is its name at the coordinator.
///
/// # Errors
/// The checkpoint that is meant is not there, broken, or another job's. "latest" goes past broken ones, and means a new
/// run where there is none, as in diffusers' script.
pub fn find_start(spec: &JobSpec, folder: Option<&Path>) -> Result<(Start, Vec<String>), ResumeError> {
    let (field, given) = (field_of(spec), spec.resume_from());
    let no_folder = || ResumeError::NoFolder { field, given: given.to_owned() };
    let mut remarks = Vec::new();
    let file = match ResumeFrom::parse(given) {
        // The second was refused with the job file.
        Ok(ResumeFrom::Nothing) | Err(_) => return Ok((Start::Beginning, remarks)),
        Ok(ResumeFrom::Uploaded(_)) => return Ok((Start::Uploaded, remarks)),
        Ok(ResumeFrom::File(path)) => check(&with_ending(&path), spec)?,
        Ok(ResumeFrom::Step(step)) => {
            check(&folder.ok_or_else(no_folder)?.join(checkpoint::file_name(step)), spec)?
        }
        Ok(ResumeFrom::Latest) => {
            let folder = folder.ok_or_else(no_folder)?;
            let Some(newest) = newest(folder, spec, &mut remarks)? else {
                remarks.push(format!("no checkpoint in {}: starting a new run", folder.display()));
                return Ok((Start::Beginning, remarks));
            };
            newest
        }
    };
    remarks.push(format!("resuming after step {} from {}", file.step, file.path.display()));
    Ok((Start::From(file), remarks))
}

/// Removes a folder's oldest checkpoints until at most `limit` (0: any number) are left, but never that of step `newest`.
///
/// # Errors
/// The file system's.
pub fn remove_oldest(folder: &Path, limit: u64, newest: u64) -> io::Result<()> {
    let mut steps = steps_in(folder)?;
    let too_many = match usize::try_from(limit) {
        Ok(limit) if limit > 0 => steps.len().saturating_sub(limit),
        _ => 0,
    };
    steps.retain(|step| *step != newest);
    for step in steps.iter().take(too_many) {
        fs::remove_file(folder.join(checkpoint::file_name(*step)))?;
    }
    Ok(())
}

/// Gives a folder's metrics.csv a name of its own, which tells that it has the steps before `first`: the file of the job
/// that goes on has only those from there on.
///
/// # Errors
/// The file system's.
pub fn set_metrics_aside(folder: &Path, first: u64) -> io::Result<()> {
    let aside = folder.join(format!("metrics-before-step-{first}.csv"));
    match fs::rename(folder.join("metrics.csv"), aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed,
    }
}

/// The option that says where a job goes on. Only one that has it comes here.
fn field_of(spec: &JobSpec) -> &'static str {
    spec.resume_option().unwrap_or("resume_from_checkpoint")
}

/// The newest checkpoint of a folder that is whole.
fn newest(
    folder: &Path,
    spec: &JobSpec,
    remarks: &mut Vec<String>,
) -> Result<Option<CheckpointFile>, ResumeError> {
    let steps = match steps_in(folder) {
        Err(source) => {
            return Err(ResumeError::Unreadable { field: field_of(spec), path: folder.to_owned(), source });
        }
        Ok(steps) => steps,
    };
    // Of another job, or behind this one's end.
    let mut refused = None;
    for step in steps.into_iter().rev() {
        match check(&folder.join(checkpoint::file_name(step)), spec) {
            Ok(found) => return Ok(Some(found)),
            Err(error) => {
                remarks.push(format!("warning: {error}; looking for an older one"));
                if matches!(error, ResumeError::Refused { .. }) {
                    refused.get_or_insert(error);
                }
            }
        }
    }
    // A folder full of checkpoints that do not fit must not silently begin a new run.
    refused.map_or(Ok(None), Err)
}

/// What to tell a user whose output folder has files of another job, as far as its job.toml or its checkpoints say so.
pub fn others_warning(folder: &Path, spec: &JobSpec) -> Option<String> {
    let differs = job_there(folder, spec).or_else(|| checkpoint_there(folder, spec))?;
    Some(format!(
        "{} has files of another job ({differs}); those of the same names are replaced, and the others stay beside them: \
         give another -o to keep the two apart",
        folder.display()
    ))
}

/// The first option in which the job of a folder's job.toml is another one.
fn job_there(folder: &Path, spec: &JobSpec) -> Option<String> {
    let there = parse_job_toml(&fs::read_to_string(folder.join("job.toml")).ok()?).ok()?;
    // As of the last step: nothing is left out.
    let [before, now] = [&there, spec].map(|spec| checkpoint::deciding_options(spec, spec.total_steps()));
    let about = |option: &String| match (before.get(option), now.get(option)) {
        (Some(before), Some(now)) => format!("{option} was {before}, now it is {now}"),
        _ => option.clone(),
    };
    before.keys().chain(now.keys()).find(|option| before.get(*option) != now.get(*option)).map(about)
}

/// The newest of a folder's checkpoints that belongs to another job, by their headers.
fn checkpoint_there(folder: &Path, spec: &JobSpec) -> Option<String> {
    steps_in(folder).ok()?.into_iter().rev().find_map(|step| {
        let name = checkpoint::file_name(step);
        let file = fs::File::open(folder.join(&name)).ok()?;
        let size = file.metadata().ok()?.len();
        let differences = OpenCheckpoint::new(file, size).ok()?.header.about.differences(spec);
        differences.first().map(|difference| format!("{name}: {difference}"))
    })
}

/// Whether a folder has any.
pub fn has_checkpoint(folder: &Path) -> bool {
    steps_in(folder).is_ok_and(|steps| !steps.is_empty())
}

/// The steps of a folder's checkpoints, in order; of a folder that is not there none.
fn steps_in(folder: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut steps = Vec::new();
    for entry in entries {
        steps.extend(entry?.file_name().to_str().and_then(checkpoint::step_of_name));
    }
    steps.sort_unstable();
    Ok(steps)
}

/// diffusers names a folder, `out/checkpoint-500`: here that is a file.
fn with_ending(path: &str) -> PathBuf {
    let (given, file) = (PathBuf::from(path), PathBuf::from(format!("{path}.safetensors")));
    if !given.exists() && file.exists() { file } else { given }
}

/// Reads a checkpoint: first its header, so that one of another job is told at once, and then the rest of it, of which
/// nothing is kept.
fn check(path: &Path, spec: &JobSpec) -> Result<CheckpointFile, ResumeError> {
    let field = field_of(spec);
    let failed = |error| match error {
        CheckpointError::Access(StateError::Io(source)) => {
            ResumeError::Unreadable { field, path: path.to_owned(), source }
        }
        source => ResumeError::Invalid { field, path: path.to_owned(), source },
    };
    let unreadable = |source| ResumeError::Unreadable { field, path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(unreadable)?;
    let size = file.metadata().map_err(unreadable)?.len();
    let checkpoint = OpenCheckpoint::new(Hashing::new(file), size).map_err(failed)?;
    let about = &checkpoint.header.about;
    about.check(spec).map_err(|problem| ResumeError::Refused { field, path: path.to_owned(), problem })?;
    let step = about.step;
    let sha256 = checkpoint.verify().map_err(failed)?.hash();
    Ok(CheckpointFile { path: path.to_owned(), step, size, sha256 })
}

#[cfg(test)]
mod tests {
    use ringtune_shared::job::parse_job_toml;

    use super::*;

    fn job(resume: &str) -> JobSpec {
        parse_job_toml(&format!(
            "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n[train]\n\
             placeholder_token = \"<a>\"\ninitializer_token = \"b\"\nresume_from_checkpoint = {resume:?}\n"
        ))
        .expect("valid")
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn latest_without_any_is_a_new_run_and_a_missing_step_an_error() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for place in [folder.path().to_owned(), folder.path().join("not-there")] {
            let (start, remarks) = find_start(&job("latest"), Some(&place)).expect("found");
            assert_eq!(start, Start::Beginning);
            assert!(remarks[0].contains("starting a new run"), "{remarks:?}");
        }
        let missing = find_start(&job("checkpoint-5"), Some(folder.path())).expect_err("missing").to_string();
        assert!(missing.contains("checkpoint-5.safetensors"), "{missing}");
        let nowhere = find_start(&job("latest"), None).expect_err("no folder").to_string();
        assert!(nowhere.starts_with("train.resume_from_checkpoint: got \"latest\""), "{nowhere}");
        assert!(nowhere.contains("--resume-from JOB"), "{nowhere}");
    }

    #[test]
    fn a_job_of_each_kind_is_told_its_own_option() {
        let words = |resume: &str| {
            parse_job_toml(&format!(
                "kind = \"gpt2_finetune\"\n[model]\nbase = \"/m\"\n[gpt2]\ntokens = \"/t\"\n\
                 resume_from_checkpoint = {resume:?}\n"
            ))
            .expect("valid")
        };
        let folder = tempfile::tempdir().expect("temporary folder");
        let (start, _) = find_start(&words("latest"), Some(folder.path())).expect("found");
        assert_eq!(start, Start::Beginning);
        let nowhere = find_start(&words("5"), None).expect_err("no folder").to_string();
        assert!(nowhere.starts_with("gpt2.resume_from_checkpoint: got \"5\""), "{nowhere}");
        // A checkpoint of the other kind.
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/0.1.0/plain");
        let other = words(&fixture.join("checkpoint-6").display().to_string());
        let refused = find_start(&other, None).expect_err("another job's").to_string();
        assert!(refused.starts_with("gpt2.resume_from_checkpoint: "), "{refused}");
        assert!(refused.contains("kind was \"textual_inversion\", now it is \"gpt2_finetune\""), "{refused}");
    }

    #[test]
    fn broken_ones_are_passed_over_and_named() {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::write(folder.path().join("checkpoint-9.safetensors"), "cut").expect("written");
        let (start, remarks) = find_start(&job("latest"), Some(folder.path())).expect("found");
        assert_eq!(start, Start::Beginning);
        assert!(remarks[0].contains("checkpoint-9.safetensors: it is not a checkpoint"), "{remarks:?}");
        let step = find_start(&job("9"), Some(folder.path())).expect_err("broken");
        assert!(matches!(step, ResumeError::Invalid { .. }), "{step}");
    }

    /// Whose tensors are not those that were written, too.
    #[test]
    fn a_damaged_one_is_passed_over_and_one_of_another_job_is_not() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/0.1.0");
        let folder = tempfile::tempdir().expect("temporary folder");
        let name = checkpoint::file_name(6);
        let mut bytes = fs::read(fixtures.join("plain").join(&name)).expect("a fixture");
        let text = fs::read_to_string(fixtures.join("jobs/plain.toml")).expect("a job");
        let mut spec = parse_job_toml(&text).expect("valid");
        *spec.resume_from_mut().expect("a job with steps") = "latest".to_owned();
        let find = |spec: &JobSpec| find_start(spec, Some(folder.path()));
        fs::write(folder.path().join(&name), &bytes).expect("written");
        let (start, _) = find(&spec).expect("found");
        let Start::From(found) = start else { panic!("{start:?}") };
        assert_eq!((found.step, found.size, found.sha256), (6, bytes.len() as u64, ContentHash::of(&bytes)));
        let mut other = job("latest");
        other.common.name = spec.common.name.clone();
        assert!(matches!(find(&other), Err(ResumeError::Refused { .. })));
        // Beside a newer one of another job, which is passed over, as it would not be taken.
        let newer = checkpoint::file_name(7);
        fs::copy(fixtures.join("selected/checkpoint-6.safetensors"), folder.path().join(&newer))
            .expect("copied");
        let (start, remarks) = find(&spec).expect("found");
        assert!(matches!(start, Start::From(CheckpointFile { step: 6, .. })), "{start:?}");
        assert!(remarks[0].contains(&newer) && remarks[0].contains("another job"), "{remarks:?}");
        let warning = others_warning(folder.path(), &spec).expect("a warning");
        assert!(warning.contains(&newer) && warning.contains("was"), "{warning}");
        fs::remove_file(folder.path().join(&newer)).expect("removed");
        assert_eq!(others_warning(folder.path(), &spec), None);
        *bytes.last_mut().expect("a byte") ^= 1;
        fs::write(folder.path().join(&name), &bytes).expect("written");
        let (start, remarks) = find(&spec).expect("found");
        assert_eq!(start, Start::Beginning);
        assert!(remarks[0].contains("have the hash"), "{remarks:?}");
    }

    #[test]
    fn the_oldest_go_and_the_newest_stays_even_after_older_runs() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let fill = || {
            for step in [3, 6, 9, 20] {
                fs::write(folder.path().join(checkpoint::file_name(step)), "x").expect("written");
            }
            fs::write(folder.path().join("checkpoint-1.txt"), "not ours").expect("written");
        };
        fill();
        remove_oldest(folder.path(), 0, 9).expect("removed");
        assert_eq!(names(folder.path()).len(), 5);
        remove_oldest(folder.path(), 2, 9).expect("removed");
        assert_eq!(
            names(folder.path()),
            ["checkpoint-1.txt", "checkpoint-20.safetensors", "checkpoint-9.safetensors"]
        );
        fill();
        remove_oldest(folder.path(), 1, 3).expect("removed");
        assert_eq!(names(folder.path()), ["checkpoint-1.txt", "checkpoint-3.safetensors"]);
    }
}
