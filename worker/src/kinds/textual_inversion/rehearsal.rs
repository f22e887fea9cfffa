//! A job's preparation without a job: the same checks and the same first microbatches, on this machine alone.

use std::{path::Path, sync::Arc, time::Instant};

use ringtune_shared::job::{JobSpec, kinds::textual_inversion::TextualInversionSpec};

use super::prepare::prepare;
use crate::{
    data::ClipTokenizer,
    engine::EngineHandle,
    kinds::{
        pictures::{PROMPTS_SHOWN, TIMED_MICROBATCHES, Timing, found, name_of, rehearsed_words},
        rehearsal::{Alone, As, Found, ModelReport, alone},
    },
    rank::{Context, Error},
    train::MicrobatchBuilder,
};

/// Prepares the job as the only rank of a ring would, and takes the first microbatches.
///
/// # Errors
/// What would end the job: see [`Error`].
pub(in crate::kinds) async fn rehearse(
    spec: &JobSpec,
    job: &TextualInversionSpec,
    with: As,
    context: &Context,
) -> Result<Found, Error> {
    let compute = with.compute;
    // 1. The rank's own preparation.
    let done = alone(spec, with, context, async |rank| prepare(rank, job, compute).await).await?;
    let Alone { prepared, assignment, warnings } = done;
    // 2. One picture through the VAE stands for all of its size.
    let pictures = prepared.material.posteriors.listed();
    let model = prepared.model.clone();
    let (images, encode_seconds) = prepared.material.posteriors.rehearse(compute.then_some(context)).await?;
    context.engine.drop_vae().await.map_err(Error::of_engine)?;
    let mut builder = prepared.material.inputs.into_builder(images)?;
    let epoch_samples = builder.samples_of_pass();
    // 3. The first microbatches.
    let rows = Arc::clone(prepared.state.rows());
    let count = assignment.spec.global_microbatches();
    let mut samples: Vec<Vec<i64>> = Vec::new();
    for number in 0..PROMPTS_SHOWN as u32 {
        let microbatch = builder.build(1 + u64::from(number / count), number % count, Arc::clone(&rows))?;
        samples.extend(microbatch.input_ids.chunks(model.max_text_length).map(<[i64]>::to_vec));
        if samples.len() >= PROMPTS_SHOWN {
            break;
        }
    }
    samples.truncate(PROMPTS_SHOWN);
    let (owned, folder) = (job.clone(), prepared.tokenizer.clone());
    let (length, vocabulary) = (model.max_text_length, model.vocab_size as i64);
    let (words, prompts) = ringtune_shared::tasks::spawn_blocking(move || {
        let tokenizer = ClipTokenizer::open(&folder, length)?;
        let words = rehearsed_words(owned.concepts(), &tokenizer, vocabulary)?;
        let prompts = samples.iter().map(|ids| tokenizer.text_of(ids, |id| name_of(id, &words))).collect();
        Ok::<_, Error>((words, prompts))
    })
    .await??;
    let timing = match encode_seconds {
        Some(encode_seconds) => {
            let microbatch_seconds = time_microbatches(&mut builder, &rows, count, &context.engine).await?;
            let private_bytes = crate::node::private_bytes(Path::new("/"));
            Some(Timing { encode_seconds, microbatch_seconds, private_bytes })
        }
        None => None,
    };
    // 4. What all of it comes to.
    let model = Some(ModelReport::of(&spec.common, &model, prepared.origin.model_hash));
    let found = found(spec, &job.train, with, pictures, epoch_samples, timing);
    Ok(Found { warnings, words, prompts, model, ..found })
}

/// Seconds of a microbatch once everything is in its place.
async fn time_microbatches(
    builder: &mut MicrobatchBuilder,
    rows: &Arc<Vec<f32>>,
    count: u32,
    engine: &EngineHandle,
) -> Result<f64, Error> {
    let mut seconds = 0.0;
    for number in 0..TIMED_MICROBATCHES {
        let microbatch = builder.build(1 + u64::from(number / count), number % count, Arc::clone(rows))?;
        let began = Instant::now();
        engine.gradient(microbatch).await.map_err(Error::of_engine)?;
        seconds = began.elapsed().as_secs_f64();
    }
    Ok(seconds)
}
