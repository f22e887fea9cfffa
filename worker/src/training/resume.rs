//! Where a job goes on: the checkpoint that it was given, fetched and checked.

use std::path::Path;

use ringtune_shared::{
    checkpoint::{self, CheckpointError, LARGEST_FILE, Numerics, OpenCheckpoint, ResumeFrom},
    ids::ContentHash,
    job::JobSpec,
    state::StateError,
    version::VERSION,
};

use super::trainee::{Named, Origin};
use crate::{
    contents::{self, one_file_on_disk},
    fault::{Blame, Fault, Refusal},
    rank::{Error, Rank},
    rank_state::TakenState,
    session::Assignment,
    train::SavedState,
};

/// Where a job begins, or goes on.
#[derive(Debug)]
pub(crate) struct Start {
    /// Steps that are done.
    pub(crate) done: u64,
    /// All that the next ones depend on, not read yet. None: it begins.
    pub(crate) state: Option<TakenState>,
    /// What its bits follow from.
    pub(crate) origin: Origin,
}

/// The job's own checkpoint is not what it was: an older one is to be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Damaged(String);

impl Blame for Damaged {
    fn fault(&self) -> Fault {
        Fault::Checkpoint
    }
}

/// What this rank computes on.
pub(super) fn numerics(assignment: &Assignment) -> Numerics {
    Numerics {
        class: assignment.numerics_class.clone(),
        threads_per_rank: u32::try_from(assignment.threads).unwrap_or(u32::MAX),
        precision: assignment.precision.name().to_owned(),
    }
}

/// Fetches the job's checkpoint, if it has one, and checks what can be checked before the model is loaded. The state in it
/// stays on the disk.
pub(crate) async fn fetch(rank: &Rank) -> Result<Option<OpenCheckpoint>, Error> {
    let Rank { assignment, context, journal, .. } = rank;
    let spec = &assignment.spec;
    // The job's own one, where it has done steps before.
    let place = Some(assignment.resume_from.as_str()).filter(|own| !own.is_empty());
    let hash = match ResumeFrom::parse(place.unwrap_or(spec.resume_from())) {
        Ok(ResumeFrom::Nothing) => return Ok(None),
        Ok(ResumeFrom::Uploaded(hash)) => hash,
        Ok(other) => {
            return Err(refused(spec, format!("a worker needs an artifact:// URI, not {other:?}")).into());
        }
        Err(error) => return Err(refused(spec, error.to_string()).into()),
    };
    let own = is_own(assignment);
    let fetched = one_file_on_disk(hash, LARGEST_FILE, &context.artifacts, &context.cache).await;
    let path = fetched.map_err(|error| not_fetched(error, own))?;
    // From here on it may go from the cache: it stays as long as it is open.
    let asking = spec.clone();
    let opening = ringtune_shared::tasks::spawn_blocking(move || {
        checkpoint::open(&path).map_err(|error| not_opened(&path, error, &asking, own))
    });
    let checkpoint = opening.await??;
    let about = &checkpoint.header.about;
    about.check(spec).map_err(|problem| refused(spec, problem))?;
    let warning = about.check_numerics(&numerics(assignment)).map_err(|problem| refused(spec, problem))?;
    // The same for all ranks: said once.
    if assignment.is_first() {
        if let Some(warning) = warning {
            journal.warn(warning).await;
        }
        if about.version != VERSION {
            let theirs = &about.version;
            journal.warn(format!("the checkpoint was written by version {theirs}, this is {VERSION}")).await;
        }
    }
    Ok(Some(checkpoint))
}

impl Start {
    /// Of a job on this model and these data, with the checkpoint that it goes on from.
    ///
    /// # Errors
    /// The checkpoint is of another job.
    pub(crate) fn of(
        checkpoint: Option<OpenCheckpoint>,
        model_hash: ContentHash,
        data: Named,
        data_hash: ContentHash,
        assignment: &Assignment,
    ) -> Result<Self, Error> {
        let own = class_and_threads(&numerics(assignment));
        let origin = |provenance| Origin { model_hash, data_hash, data, provenance };
        let Some(OpenCheckpoint { header, source }) = checkpoint else {
            return Ok(Self { done: 0, state: None, origin: origin(own) });
        };
        let about = header.about;
        for (what, before, now) in
            [("model.base", &about.model_hash, model_hash), (data.key, &about.data_hash, data_hash)]
        {
            if *before != now.to_string() {
                let problem = format!(
                    "the checkpoint is of another job: {what} has another content (it was {before}, now it is {now})"
                );
                return Err(refused(&assignment.spec, problem).into());
            }
        }
        let state = TakenState { numbers: header.numbers, source: Box::new(source) };
        let provenance = match class_and_threads(&about.numerics) == own {
            true => about.provenance,
            false => format!("{}; from step {}: {own}", about.provenance, about.step + 1),
        };
        Ok(Self { done: about.step, state: Some(state), origin: origin(provenance) })
    }
}

/// A checkpoint's state, in memory.
///
/// # Errors
/// It cannot be read, or is not what its header says.
pub(crate) async fn read(state: TakenState, assignment: &Assignment) -> Result<SavedState, Error> {
    let read = ringtune_shared::tasks::spawn_blocking(move || state.into_saved()).await?;
    read.map_err(|error| unreadable(error, assignment))
}

/// What is wrong with a job whose checkpoint's state cannot be read.
pub(crate) fn unreadable(error: StateError, assignment: &Assignment) -> Error {
    unusable(CheckpointError::from(error), &assignment.spec, is_own(assignment))
}

/// Whether the coordinator chose the checkpoint among the job's own: it may choose another one.
fn is_own(assignment: &Assignment) -> bool {
    !assignment.resume_from.is_empty()
}

/// Another content than was asked for, or none at all, is the checkpoint's fault; anything else the network's or the disk's.
fn not_fetched(error: contents::Error, own: bool) -> Error {
    if own && error.fault() == Fault::Job { Damaged(error.to_string()).into() } else { error.into() }
}

/// A file that cannot be read is no fault of the job.
fn not_opened(path: &Path, error: CheckpointError, spec: &JobSpec, own: bool) -> Error {
    match error {
        CheckpointError::Access(StateError::Io(source)) => {
            contents::Error::Io { path: path.to_owned(), source }.into()
        }
        other => unusable(other, spec, own),
    }
}

fn unusable(error: CheckpointError, spec: &JobSpec, own: bool) -> Error {
    if own { Damaged(error.to_string()).into() } else { refused(spec, error.to_string()).into() }
}

/// What a job's files say of it.
fn class_and_threads(numerics: &Numerics) -> String {
    format!("{}/threads-{}", numerics.class, numerics.threads_per_rank)
}

fn refused(spec: &JobSpec, problem: String) -> Refusal {
    Refusal::of(spec.resume_option().unwrap_or("the checkpoint"), problem)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn only_the_jobs_own_checkpoint_is_blamed_and_only_where_it_is_wrong_itself() {
        let wrong =
            || contents::Error::WrongContent { uri: "artifact://x".to_owned(), problem: "7".to_owned() };
        let refused = |code| contents::Error::Refused { what: "x".to_owned(), code, message: String::new() };
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let io = || contents::Error::Io { path: "f".into(), source: full() };
        for (error, own, fault) in [
            (wrong(), true, Fault::Checkpoint),
            (wrong(), false, Fault::Job),
            (refused(Code::NotFound), true, Fault::Checkpoint),
            (refused(Code::NotFound), false, Fault::Job),
            (refused(Code::Internal), true, Fault::Coordinator),
            (io(), true, Fault::Node),
        ] {
            let text = error.to_string();
            let error = not_fetched(error, own);
            assert_eq!((error.fault(), error.to_string()), (fault, text.clone()), "{text}, own: {own}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        std::fs::write(&path, b"not a checkpoint").unwrap();
        let text = "kind = \"generate\"\n[model]\nbase = \"/m\"\n[generate]\nprompts = [\"a\"]\n";
        let spec = ringtune_shared::job::parse_job_toml(text).unwrap();
        let opened = |own| not_opened(&path, checkpoint::open(&path).err().unwrap(), &spec, own).fault();
        assert_eq!((opened(true), opened(false)), (Fault::Checkpoint, Fault::Job));
        let gone = CheckpointError::Access(StateError::Io(full()));
        assert_eq!(not_opened(&path, gone, &spec, true).fault(), Fault::Node);
    }
}
