//! Where a job goes on: the checkpoint that it was given, fetched and checked.

use std::path::Path;

use ringtune_shared::{
    checkpoint::{self, CheckpointError, LARGEST_FILE, Numerics, OpenCheckpoint, ResumeFrom},
    ids::ContentHash,
    state::StateError,
    version::VERSION,
};

use super::{Context, RankError, journal::Journal, large_files::one_file_on_disk};
use crate::{
    session::Assignment,
    train::{SavedState, TrainState},
};

/// The steps that are done before a job's own first one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Done {
    /// How many.
    pub(super) steps: u64,
    /// What the job's files say of the numerics of all steps, those to come included.
    pub(super) provenance: String,
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
pub(super) async fn fetch(
    assignment: &Assignment,
    context: &Context,
    journal: &Journal,
) -> Result<Option<OpenCheckpoint>, RankError> {
    let spec = &assignment.spec;
    let hash = match ResumeFrom::parse(spec.resume_from()) {
        Ok(ResumeFrom::Nothing) => return Ok(None),
        Ok(ResumeFrom::Uploaded(hash)) => hash,
        Ok(other) => return Err(refused(format!("a worker needs an artifact:// URI, not {other:?}"))),
        Err(error) => return Err(refused(error.to_string())),
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
    if assignment.rank == 0 {
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

/// Puts a fresh state where the checkpoint left off.
pub(super) async fn restore(
    checkpoint: Option<OpenCheckpoint>,
    fresh: TrainState,
    [model_hash, data_hash]: [ContentHash; 2],
    assignment: &Assignment,
) -> Result<(TrainState, Done), RankError> {
    let own = class_and_threads(&numerics(assignment));
    let Some(OpenCheckpoint { header, mut source }) = checkpoint else {
        return Ok((fresh, Done { steps: 0, provenance: own }));
    };
    let about = header.about;
    for (what, before, now) in
        [("model.base", &about.model_hash, model_hash), ("data.images", &about.data_hash, data_hash)]
    {
        if *before != now.to_string() {
            return Err(refused(format!(
                "the checkpoint is of another job: {what} has another content (it was {before}, now it is {now})"
            )));
        }
    }
    let numbers = header.numbers;
    let read = tokio::task::spawn_blocking(move || SavedState::read(numbers, &mut source)).await?;
    let mut saved = read.map_err(|error| refused(CheckpointError::from(error).to_string()))?;
    let state = fresh.restored(&mut saved)?;
    saved.finish()?;
    let provenance = match class_and_threads(&about.numerics) == own {
        true => about.provenance,
        false => format!("{}; from step {}: {own}", about.provenance, about.step + 1),
    };
    Ok((state, Done { steps: about.step, provenance }))
}

/// A file that cannot be read is no fault of the job.
fn failed(path: &Path, error: CheckpointError) -> RankError {
    match error {
        CheckpointError::Access(StateError::Io(source)) => RankError::Io { path: path.to_owned(), source },
        other => refused(other.to_string()),
    }
}

fn class_and_threads(numerics: &Numerics) -> String {
    format!("{}/threads-{}", numerics.class, numerics.threads_per_rank)
}

fn refused(problem: String) -> RankError {
    RankError::Field { field: "train.resume_from_checkpoint", problem }
}
