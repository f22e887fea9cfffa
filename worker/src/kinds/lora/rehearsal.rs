//! A LoRA's preparation without a job: the same checks and the same first microbatches, on this machine alone.

use std::{path::Path, sync::Arc, time::Instant};

use ringtune_shared::job::{JobSpec, kinds::lora::LoraSpec};

use super::prepare::ready;
use crate::{
    data::ClipTokenizer,
    engine::{AlignedFloats, Buckets, EngineError},
    kinds::{
        pictures::{PROMPTS_SHOWN, TIMED_MICROBATCHES, Timing, found, name_of, rehearsed_words},
        rehearsal::{Alone, As, Found, ModelReport, alone},
    },
    rank::{Context, Error},
};

/// Gradients that nobody wants.
struct Nowhere(Vec<usize>);

impl Buckets for Nowhere {
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError> {
        Ok(AlignedFloats::zeros(self.0.get(bucket).copied().unwrap_or(0)))
    }

    fn give(&mut self, _bucket: usize, _memory: AlignedFloats) -> Result<(), EngineError> {
        Ok(())
    }
}

/// Prepares the job as the only rank of a ring would, and takes the first microbatches.
///
/// # Errors
/// What would end the job: see [`Error`].
pub(in crate::kinds) async fn rehearse(
    spec: &JobSpec,
    job: &LoraSpec,
    with: As,
    context: &Context,
) -> Result<Found, Error> {
    // 1. The rank's own preparation.
    let done = alone(spec, with, context, async |rank| ready(rank, job, with.compute).await).await?;
    let Alone { prepared: ready, warnings, .. } = done;
    // 2. One picture through the VAE stands for all of its size.
    let (material, model) = (ready.material, ready.model);
    let pictures = material.posteriors.listed();
    let (images, encode_seconds) = material.posteriors.rehearse(with.compute.then_some(context)).await?;
    context.engine.drop_vae().await.map_err(Error::of_engine)?;
    let mut builder = material.inputs.into_builder(images)?;
    let epoch_samples = builder.samples_of_pass();
    // 3. The first microbatches.
    let count = spec.global_microbatches();
    let mut build = |number: u32| {
        builder.build(1 + u64::from(number / count), number % count, Arc::default()).map_err(Error::from)
    };
    let mut samples: Vec<Vec<i64>> = Vec::new();
    for number in 0..PROMPTS_SHOWN as u32 {
        samples.extend(build(number)?.input_ids.chunks(model.max_text_length).map(<[i64]>::to_vec));
        if samples.len() >= PROMPTS_SHOWN {
            break;
        }
    }
    samples.truncate(PROMPTS_SHOWN);
    let (folder, length, vocabulary) = (ready.tokenizer, model.max_text_length, model.vocab_size as i64);
    let concepts = job.concepts.clone();
    let reading = move || {
        let tokenizer = ClipTokenizer::open(&folder, length)?;
        let words = rehearsed_words(concepts, &tokenizer, vocabulary)?;
        let prompts = samples.iter().map(|ids| tokenizer.text_of(ids, |id| name_of(id, &words))).collect();
        Ok::<_, Error>((words, prompts))
    };
    let (words, prompts) = ringtune_shared::tasks::spawn_blocking(reading).await??;
    let buckets = &ready.prepared.parameters.plan.buckets;
    let lengths: Vec<usize> = buckets.iter().map(|bucket| bucket.length).collect();
    let mut timing = None;
    if let Some(encode_seconds) = encode_seconds {
        let mut seconds = 0.0;
        for number in 0..TIMED_MICROBATCHES {
            let microbatch = build(number)?;
            let (began, nowhere) = (Instant::now(), Nowhere(lengths.clone()));
            context.engine.picture_gradient(microbatch, false, nowhere).await.map_err(Error::of_engine)?;
            seconds = began.elapsed().as_secs_f64();
        }
        let private_bytes = crate::node::private_bytes(Path::new("/"));
        timing = Some(Timing { encode_seconds, microbatch_seconds: seconds, private_bytes });
    }
    // 4. What all of it comes to.
    let model = Some(ModelReport::of(&spec.common, &model, ready.prepared.origin.model_hash));
    let found = found(spec, &job.train, with, pictures, epoch_samples, timing);
    Ok(Found { warnings, words, prompts, model, ..found })
}
