//! Drawing without a job: the same preparation, and the first steps of one batch, on this machine alone.

use std::{path::Path, sync::Arc, time::Instant};

use ringtune_shared::{
    ids::ContentHash,
    job::{JobSpec, kinds::generate::GenerateSpec},
};

use super::{super::rehearsal::alone, prepare::prepare};
use crate::{
    engine::{EngineHandle, ModelInfo, Precision},
    generate::{Batch, Drawing},
    rank::{Context, Error},
};

/// The first time weights are packed and memory is asked for, so it counts for nothing. The difference of the others is
/// that of their steps; what is left of them are the words and the VAE.
const TIMED_STEPS: [u32; 3] = [2, 2, 4];

/// What is rehearsed, and as what.
#[derive(Clone, Debug)]
pub struct DrawingOptions {
    /// The job, its paths absolute.
    pub spec: JobSpec,
    /// Its work.
    pub job: GenerateSpec,
    /// What a rank would compute in here.
    pub precision: Precision,
    /// Its threads.
    pub threads: usize,
    /// Take some steps, to see how long they take.
    pub compute: bool,
}

/// What the preparation found.
#[derive(Clone, Debug)]
pub struct RehearsedDrawing {
    /// The model.
    pub model: ModelInfo,
    /// Its files, by content.
    pub model_hash: ContentHash,
    /// Width and height in pixels.
    pub size: (usize, usize),
    /// How it is drawn.
    pub scheduler: &'static str,
    /// Passes through the UNet, of at most `batch` pictures.
    pub batches: usize,
    /// The token of each embedding, its vectors, and the hash of its file.
    pub embeddings: Vec<(String, usize, ContentHash)>,
    /// The prompts as the model gets them, learned tokens in brackets, and in how many chunks.
    pub prompts: Vec<(String, usize)>,
    /// What preparation warned of.
    pub warnings: Vec<String>,
    /// How long things took, if they were tried.
    pub timing: Option<DrawingTiming>,
}

/// Measured on this machine, for the job's largest batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DrawingTiming {
    /// Of one step.
    pub step_seconds: f64,
    /// Of everything else: the words and the VAE.
    pub other_seconds: f64,
    /// Memory of this process that no file backs, afterwards.
    pub private_bytes: u64,
}

/// Prepares the job as the only rank of a ring would, and takes some steps.
///
/// # Errors
/// What would end the job: see [`Error`].
pub async fn rehearse_drawing(options: DrawingOptions, context: &Context) -> Result<RehearsedDrawing, Error> {
    let DrawingOptions { spec, job, precision, threads, compute } = options;
    let done = alone(spec, (precision, threads), context, async |rank| prepare(rank, &job).await).await?;
    let drawing = Arc::clone(&done.prepared.drawing);
    let batches = drawing.batches();
    let timing = match batches.first() {
        Some(first) if compute => Some(time(&drawing, *first, &context.engine).await?),
        _ => None,
    };
    Ok(RehearsedDrawing {
        model: drawing.model().clone(),
        model_hash: done.prepared.model.hash,
        size: drawing.size(),
        scheduler: drawing.sampler().name(),
        batches: batches.len(),
        embeddings: drawing.learned(),
        prompts: drawing.prompts_read_back().to_vec(),
        warnings: done.warnings,
        timing,
    })
}

async fn time(drawing: &Arc<Drawing>, batch: Batch, engine: &EngineHandle) -> Result<DrawingTiming, Error> {
    let mut taken = [0.0; TIMED_STEPS.len()];
    for (taken, steps) in taken.iter_mut().zip(TIMED_STEPS) {
        let drawing = Arc::clone(drawing);
        let request =
            ringtune_shared::tasks::spawn_blocking(move || drawing.request_of(batch, steps)).await?;
        let began = Instant::now();
        engine.generate(request).await.map_err(Error::of_engine)?;
        *taken = began.elapsed().as_secs_f64();
    }
    let [_, few, more] = taken;
    let (step_seconds, other_seconds) = split(few, more);
    Ok(DrawingTiming {
        step_seconds,
        other_seconds,
        private_bytes: crate::node::private_bytes(Path::new("/")),
    })
}

/// The seconds of a step, and of all else, from those with 2 and with 4 steps.
fn split(few: f64, more: f64) -> (f64, f64) {
    let [_, least, most] = TIMED_STEPS.map(f64::from);
    let step = ((more - few) / (most - least)).max(0.0);
    (step, (few - step * least).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_apart_from_the_rest() {
        assert_eq!(split(3.0, 5.0), (1.0, 1.0));
        assert_eq!(split(3.0, 2.0), (0.0, 3.0), "noise on the clock");
        assert_eq!(split(2.0, 6.0), (2.0, 0.0));
    }
}
