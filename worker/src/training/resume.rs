//! Where a job goes on: the checkpoint that it was given, fetched and checked.

use std::path::Path;

use ringtune_shared::{
    checkpoint::{self, CheckpointError, LARGEST_FILE, Numerics, OpenCheckpoint, ResumeFrom},
    ids::ContentHash,
    state::StateError,
    version::VERSION,
};

use crate::{
    contents::{self, one_file_on_disk},
    fault::Refusal,
    rank::{Error, Rank},
    session::Assignment,
    train::SavedState,
};

/// What a checkpoint gives.
#[derive(Debug)]
pub(crate) struct Resumed {
    /// Steps that are done.
    pub(crate) steps: u64,
    /// All that the next ones depend on.
    pub(crate) state: SavedState,
    /// What the job's files say of the numerics of all steps, those to come included.
    pub(crate) provenance: String,
}

/// What this rank computes on.
pub(crate) fn numerics(assignment: &Assignment) -> Numerics {
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
        Ok(other) => return Err(refused(format!("a worker needs an artifact:// URI, not {other:?}")).into()),
        Err(error) => return Err(refused(error.to_string()).into()),
    };
    let path = one_file_on_disk(hash, LARGEST_FILE, &context.artifacts, &context.cache).await?;
    // From here on it may go from the cache: it stays as long as it is open.
    let opening =
        tokio::task::spawn_blocking(move || checkpoint::open(&path).map_err(|error| failed(&path, error)));
    let checkpoint = opening.await??;
    let about = &checkpoint.header.about;
    about.check(spec).map_err(refused)?;
    let warning = about.check_numerics(&numerics(assignment)).map_err(refused)?;
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

impl Resumed {
    /// What an open checkpoint gives a job on this model and these pictures.
    ///
    /// # Errors
    /// It is of another job, or cannot be read.
    pub(crate) async fn read(
        checkpoint: OpenCheckpoint,
        [model_hash, data_hash]: [ContentHash; 2],
        assignment: &Assignment,
    ) -> Result<Self, Error> {
        let OpenCheckpoint { header, mut source } = checkpoint;
        let about = header.about;
        for (what, before, now) in
            [("model.base", &about.model_hash, model_hash), ("data.images", &about.data_hash, data_hash)]
        {
            if *before != now.to_string() {
                return Err(refused(format!(
                    "the checkpoint is of another job: {what} has another content (it was {before}, now it is {now})"
                ))
                .into());
            }
        }
        let numbers = header.numbers;
        let read = tokio::task::spawn_blocking(move || SavedState::read(numbers, &mut source)).await?;
        let state = read.map_err(|error| refused(CheckpointError::from(error).to_string()))?;
        let own = class_and_threads(&numerics(assignment));
        let provenance = match class_and_threads(&about.numerics) == own {
            true => about.provenance,
            false => format!("{}; from step {}: {own}", about.provenance, about.step + 1),
        };
        Ok(Self { steps: about.step, state, provenance })
    }
}

/// A file that cannot be read is no fault of the job.
fn failed(path: &Path, error: CheckpointError) -> Error {
    match error {
        CheckpointError::Access(StateError::Io(source)) => {
            contents::Error::Io { path: path.to_owned(), source }.into()
        }
        other => refused(other.to_string()).into(),
    }
}

/// What a job's files say of it.
pub(crate) fn class_and_threads(numerics: &Numerics) -> String {
    format!("{}/threads-{}", numerics.class, numerics.threads_per_rank)
}

fn refused(problem: String) -> Refusal {
    Refusal::of("train.resume_from_checkpoint", problem)
}
