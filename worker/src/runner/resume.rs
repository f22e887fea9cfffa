//! Where a job goes on: the checkpoint that it was given, fetched and checked.

use ringtune_shared::{
    checkpoint::{Checkpoint, LARGEST_FILE, Numerics, ResumeFrom},
    ids::ContentHash,
    version::VERSION,
};

use super::{Context, RankError, images::one_file, journal::Journal};
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

/// Fetches the job's checkpoint, if it has one, and checks what can be checked before the model is loaded.
pub(super) async fn fetch(
    assignment: &Assignment,
    context: &Context,
    journal: &Journal,
) -> Result<Option<Checkpoint>, RankError> {
    let spec = &assignment.spec;
    let hash = match ResumeFrom::parse(spec.resume_from()) {
        Ok(ResumeFrom::Nothing) => return Ok(None),
        Ok(ResumeFrom::Uploaded(hash)) => hash,
        Ok(other) => return Err(refused(format!("a worker needs an artifact:// URI, not {other:?}"))),
        Err(error) => return Err(refused(error.to_string())),
    };
    let bytes = one_file(hash, LARGEST_FILE, &context.artifacts, &context.cache).await?;
    let read = tokio::task::spawn_blocking(move || Checkpoint::from_bytes(&bytes)).await?;
    let checkpoint = read.map_err(|error| refused(error.to_string()))?;
    checkpoint.about.check(spec).map_err(refused)?;
    let warning = checkpoint.about.check_numerics(&numerics(assignment)).map_err(refused)?;
    // The same for all ranks: said once.
    if assignment.rank == 0 {
        if let Some(warning) = warning {
            journal.warn(warning).await;
        }
        if checkpoint.about.version != VERSION {
            let theirs = &checkpoint.about.version;
            journal.warn(format!("the checkpoint was written by version {theirs}, this is {VERSION}")).await;
        }
    }
    Ok(Some(checkpoint))
}

/// Puts a fresh state where the checkpoint left off.
pub(super) fn restore(
    checkpoint: Option<Checkpoint>,
    fresh: TrainState,
    [model_hash, data_hash]: [ContentHash; 2],
    assignment: &Assignment,
) -> Result<(TrainState, Done), RankError> {
    let own = class_and_threads(&numerics(assignment));
    let Some(checkpoint) = checkpoint else {
        return Ok((fresh, Done { steps: 0, provenance: own }));
    };
    let about = checkpoint.about;
    for (what, before, now) in
        [("model.base", &about.model_hash, model_hash), ("data.images", &about.data_hash, data_hash)]
    {
        if *before != now.to_string() {
            return Err(refused(format!(
                "the checkpoint is of another job: {what} has another content (it was {before}, now it is {now})"
            )));
        }
    }
    let mut saved = SavedState { numbers: checkpoint.numbers, tensors: checkpoint.tensors };
    let state = fresh.restored(&mut saved)?;
    saved.finish()?;
    let provenance = match class_and_threads(&about.numerics) == own {
        true => about.provenance,
        false => format!("{}; from step {}: {own}", about.provenance, about.step + 1),
    };
    Ok((state, Done { steps: about.step, provenance }))
}

fn class_and_threads(numerics: &Numerics) -> String {
    format!("{}/threads-{}", numerics.class, numerics.threads_per_rank)
}

fn refused(problem: String) -> RankError {
    RankError::Field { field: "train.resume_from_checkpoint", problem }
}
