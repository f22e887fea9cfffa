//! What a dry run says of a job of pictures.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Instant};

use ringtune_shared::job::{
    JobSpec,
    pictures::{TrainSpec, concepts::ConceptSpec},
};

use super::Ready;
use crate::{
    data::{ClipTokenizer, Target, images::ListedImage},
    engine::{AlignedFloats, Buckets, EngineError},
    kinds::rehearsal::{Alone, As, Estimate, Found, ModelReport, RehearsedWord, SizeReport, TrainingReport},
    rank::{Context, Error},
};

/// Samples whose prompts are shown.
pub(in crate::kinds) const PROMPTS_SHOWN: usize = 8;

/// The first asks for memory; the last one is as all others.
pub(in crate::kinds) const TIMED_MICROBATCHES: u32 = 2;

/// Measured on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::kinds) struct Timing {
    /// One picture and its mirror image through the VAE.
    pub(in crate::kinds) encode_seconds: f64,
    /// One microbatch, forward and backward.
    pub(in crate::kinds) microbatch_seconds: f64,
    /// Memory of this process that no file backs, after the microbatches.
    pub(in crate::kinds) private_bytes: u64,
}

/// What a job on these `pictures` comes to, and how long it takes where that was measured. `epoch_samples`: those of a pass.
pub(in crate::kinds) fn found(
    spec: &JobSpec,
    train: &TrainSpec,
    with: As,
    pictures: Vec<Vec<(ListedImage, Target)>>,
    epoch_samples: u64,
    timing: Option<Timing>,
) -> Found {
    let cluster = &spec.common.cluster;
    let (steps, global_batch) = (train.max_train_steps, train.global_batch(cluster));
    let samples = steps.saturating_mul(global_batch).saturating_mul(spec.local_steps().into());
    let estimate = timing.map(|timing| {
        // Those that no step shows stay as they are.
        let count = (pictures.iter().map(Vec::len).sum::<usize>() as u64).min(samples);
        let share = count.div_ceil(cluster.world_size.max(1).into());
        let encode_seconds = timing.encode_seconds * share as f64;
        let passes = f64::from(train.gradient_accumulation_steps) * f64::from(spec.local_steps());
        let step_seconds = timing.microbatch_seconds * passes;
        Estimate {
            precision: with.precision.name().to_owned(),
            threads: with.threads,
            private_bytes: timing.private_bytes,
            encode_seconds,
            step_seconds,
            total_seconds: encode_seconds + step_seconds * steps as f64,
            world_size: cluster.world_size,
        }
    });
    Found {
        sizes: sizes(&pictures),
        pictures,
        training: Some(TrainingReport {
            steps,
            global_batch,
            samples,
            epoch_samples,
            epochs: samples as f64 / epoch_samples.max(1) as f64,
            learning_rate: train.effective_learning_rate(cluster),
        }),
        estimate,
        ..Found::default()
    }
}

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

/// Takes the first microbatches of a network that is ready, of which something is trained.
///
/// # Errors
/// What would end the job: see [`Error`].
pub(in crate::kinds) async fn rehearse_network(
    spec: &JobSpec,
    train: &TrainSpec,
    concepts: &[ConceptSpec],
    with: As,
    context: &Context,
    done: Alone<Ready>,
) -> Result<Found, Error> {
    let Alone { prepared: ready, warnings, .. } = done;
    // 1. One picture through the VAE stands for all of its size.
    let (material, model) = (ready.material, ready.model);
    let pictures = material.posteriors.listed();
    let (images, encode_seconds) = material.posteriors.rehearse(with.compute.then_some(context)).await?;
    context.engine.drop_vae().await.map_err(Error::of_engine)?;
    let mut builder = material.inputs.into_builder(images)?;
    let epoch_samples = builder.samples_of_pass();
    // 2. The first microbatches.
    let count = spec.global_microbatches();
    let mut build = |number: u32| {
        builder.build(1 + u64::from(number / count), number % count, Arc::default()).map_err(Error::from)
    };
    let mut samples: Vec<Vec<i64>> = Vec::new();
    // The random tokens of synthetic samples say nothing.
    let shown = if spec.image_uses().is_empty() { 0 } else { PROMPTS_SHOWN as u32 };
    for number in 0..shown {
        samples.extend(build(number)?.input_ids.chunks(model.max_text_length).map(<[i64]>::to_vec));
        if samples.len() >= PROMPTS_SHOWN {
            break;
        }
    }
    samples.truncate(PROMPTS_SHOWN);
    let (folder, length, vocabulary) = (ready.tokenizer, model.max_text_length, model.vocab_size as i64);
    let concepts = concepts.to_vec();
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
    // 3. What all of it comes to.
    let model = Some(ModelReport::of(&spec.common, &model, ready.prepared.origin.model_hash));
    let found = found(spec, train, with, pictures, epoch_samples, timing);
    Ok(Found { warnings, words, prompts, model, ..found })
}

/// How many pictures are brought to each size.
fn sizes(pictures: &[Vec<(ListedImage, Target)>]) -> Vec<SizeReport> {
    let mut sizes: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for (_, target) in pictures.iter().flatten() {
        *sizes.entry(target.size()).or_default() += 1;
    }
    sizes.into_iter().map(|((width, height), pictures)| SizeReport { width, height, pictures }).collect()
}

/// Every concept's token with its ids, which count up from the rows of the text encoder's table.
///
/// # Errors
/// A word that the tokenizer refuses.
pub(in crate::kinds) fn rehearsed_words(
    concepts: Vec<ConceptSpec>,
    tokenizer: &ClipTokenizer,
    mut next: i64,
) -> Result<Vec<RehearsedWord>, Error> {
    let word = |concept: ConceptSpec| {
        let ids = (next..next + i64::from(concept.num_vectors)).collect();
        next += i64::from(concept.num_vectors);
        let initializer_ids = tokenizer.words_of(&concept.initializer_token)?;
        let initializer = match concept.initializer_embedding.is_empty() {
            true => concept.initializer_token,
            false => concept.initializer_embedding,
        };
        let token = concept.placeholder_token;
        Ok(RehearsedWord { token, ids, initializer, initializer_ids })
    };
    concepts.into_iter().map(word).collect()
}

/// "[<cat>]", and "[<cat> 2]" for the second vector.
pub(in crate::kinds) fn name_of(id: i64, words: &[RehearsedWord]) -> Option<String> {
    let word = words.iter().find(|word| word.ids.contains(&id))?;
    Some(match word.ids.iter().position(|own| *own == id) {
        Some(place) if place > 0 => format!("[{} {}]", word.token, place + 1),
        _ => format!("[{}]", word.token),
    })
}
