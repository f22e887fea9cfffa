//! A job's preparation without a job: the same checks and the same first microbatches, on this machine alone.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Instant};

use ringtune_shared::job::{
    JobSpec,
    kinds::textual_inversion::{ConceptSpec, TextualInversionSpec},
};

use super::prepare::prepare;
use crate::{
    data::{ClipTokenizer, images::ListedImage},
    engine::EngineHandle,
    inputs::Target,
    kinds::rehearsal::{
        Alone, As, Estimate, Found, ModelReport, RehearsedWord, SizeReport, TrainingReport, alone,
    },
    rank::{Context, Error},
    train::MicrobatchBuilder,
};

/// Samples whose prompts are shown.
const PROMPTS_SHOWN: usize = 8;
/// The first asks for memory; the last one is as all others.
const TIMED_MICROBATCHES: u32 = 2;

/// Measured on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Timing {
    /// One picture and its mirror image through the VAE.
    encode_seconds: f64,
    /// One microbatch, forward and backward.
    microbatch_seconds: f64,
    /// Memory of this process that no file backs, after the microbatches.
    private_bytes: u64,
}

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
    let pictures = prepared.posteriors.listed();
    let model = prepared.model.clone();
    let (images, encode_seconds) = prepared.posteriors.rehearse(compute.then_some(context)).await?;
    context.engine.drop_vae().await.map_err(Error::of_engine)?;
    let mut builder = prepared.inputs.into_builder(images)?;
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
        let words = words(&owned, &tokenizer, vocabulary)?;
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
    let (train, cluster) = (&job.train, &spec.common.cluster);
    let (steps, global_batch) = (train.max_train_steps, train.global_batch(cluster));
    let all_samples = steps.saturating_mul(global_batch);
    let estimate = timing.map(|timing| {
        let count: usize = pictures.iter().map(Vec::len).sum();
        let share = count.div_ceil(cluster.world_size.max(1) as usize);
        let encode_seconds = timing.encode_seconds * share as f64;
        let step_seconds = timing.microbatch_seconds * f64::from(train.gradient_accumulation_steps);
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
    Ok(Found {
        warnings,
        sizes: sizes(&pictures),
        pictures,
        words,
        prompts,
        training: Some(TrainingReport {
            steps,
            global_batch,
            samples: all_samples,
            epoch_samples,
            epochs: all_samples as f64 / epoch_samples.max(1) as f64,
            learning_rate: train.effective_learning_rate(cluster),
        }),
        model: Some(ModelReport::of(&spec.common, &model, prepared.origin.model_hash)),
        estimate,
        ..Found::default()
    })
}

/// How many pictures are brought to each size.
fn sizes(pictures: &[Vec<(ListedImage, Target)>]) -> Vec<SizeReport> {
    let mut sizes: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for (_, target) in pictures.iter().flatten() {
        *sizes.entry(target.size()).or_default() += 1;
    }
    sizes.into_iter().map(|((width, height), pictures)| SizeReport { width, height, pictures }).collect()
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

/// Every concept's token with its ids, which count up from the rows of the text encoder's table.
fn words(
    job: &TextualInversionSpec,
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
    job.concepts().into_iter().map(word).collect()
}

/// "[<cat>]", and "[<cat> 2]" for the second vector.
fn name_of(id: i64, words: &[RehearsedWord]) -> Option<String> {
    let word = words.iter().find(|word| word.ids.contains(&id))?;
    Some(match word.ids.iter().position(|own| *own == id) {
        Some(place) if place > 0 => format!("[{} {}]", word.token, place + 1),
        _ => format!("[{}]", word.token),
    })
}
