//! Drawing without a job: the same preparation, and the first steps of one batch, on this machine alone.

use std::{path::Path, sync::Arc, time::Instant};

use ringtune_shared::{
    ids::ContentHash,
    job::{JobSpec, kinds::generate::GenerateSpec},
};

use super::prepare::prepare;
use crate::{
    engine::EngineHandle,
    generate::{Batch, Drawing, KnownLora},
    kinds::rehearsal::{
        As, DrawingReport, EmbeddingReport, Estimate, Found, LoraReport, ModelReport, SizeReport, alone,
    },
    rank::{Context, Error},
};

/// The first time weights are packed and memory is asked for, so it counts for nothing. The difference of the others is
/// that of their steps; what is left of them are the words and the VAE.
const TIMED_STEPS: [u32; 3] = [2, 2, 4];

/// Measured on this machine, for the job's largest batch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DrawingTiming {
    /// Of one step.
    step_seconds: f64,
    /// Of everything else: the words and the VAE.
    other_seconds: f64,
    /// Memory of this process that no file backs, afterwards.
    private_bytes: u64,
}

/// Prepares the job as the only rank of a ring would, and takes some steps.
///
/// # Errors
/// What would end the job: see [`Error`].
pub(in crate::kinds) async fn rehearse(
    spec: &JobSpec,
    job: &GenerateSpec,
    with: As,
    context: &Context,
) -> Result<Found, Error> {
    let done = alone(spec, with, context, async |rank| prepare(rank, job).await).await?;
    let drawing = Arc::clone(&done.prepared.drawing);
    let batches = drawing.batches();
    let timing = match batches.first() {
        Some(first) if with.compute => Some(time(&drawing, *first, &context.engine).await?),
        _ => None,
    };
    let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
    let (width, height) = drawing.size();
    let pictures = job.prompts.len() as u64 * u64::from(job.count);
    let shown = usize::try_from(pictures).unwrap_or(usize::MAX);
    let embedding = |(token, vectors, hash): (String, usize, ContentHash)| EmbeddingReport {
        token,
        vectors,
        sha256: hash.to_string(),
    };
    let lora = |lora: &KnownLora| LoraReport {
        name: lora.name.clone(),
        weight: lora.weight,
        sha256: lora.hash.to_string(),
    };
    let ranks = spec.common.cluster.world_size;
    let share = batches.len().div_ceil(ranks.max(1) as usize) as f64;
    Ok(Found {
        warnings: done.warnings,
        sizes: vec![SizeReport { width: side(width), height: side(height), pictures: shown }],
        prompts: drawing.prompts_read_back().iter().cloned().map(in_chunks).collect(),
        model: Some(ModelReport::of(&spec.common, drawing.model(), done.prepared.model.hash)),
        drawing: Some(DrawingReport {
            prompts: job.prompts.len(),
            count: job.count,
            pictures,
            batches: batches.len(),
            batch: job.batch,
            scheduler: drawing.sampler().name().to_owned(),
            steps: job.steps,
            guidance_scale: job.guidance_scale,
            embeddings: drawing.learned().into_iter().map(embedding).collect(),
            loras: drawing.loras().iter().map(lora).collect(),
        }),
        estimate: timing.map(|timing| Estimate {
            precision: with.precision.name().to_owned(),
            threads: with.threads,
            private_bytes: timing.private_bytes,
            encode_seconds: timing.other_seconds,
            step_seconds: timing.step_seconds,
            total_seconds: (timing.other_seconds + timing.step_seconds * f64::from(job.steps)) * share,
            world_size: ranks,
        }),
        ..Found::default()
    })
}

/// A prompt, and whether the text encoder gets it in parts.
fn in_chunks((prompt, chunks): (String, usize)) -> String {
    match chunks {
        1 => prompt,
        _ => format!("{prompt} (long: in {chunks} parts, nothing is cut off)"),
    }
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
