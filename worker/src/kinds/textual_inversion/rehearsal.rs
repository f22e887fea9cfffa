//! A job's preparation without a job: the same checks and the same first microbatches, on this machine alone.

use std::{path::Path, sync::Arc, time::Instant};

use ringtune_shared::{
    ids::ContentHash,
    job::{
        JobSpec,
        kinds::textual_inversion::{ConceptSpec, TextualInversionSpec},
    },
};
use serde::Serialize;

use super::{
    super::rehearsal::{Alone, alone},
    prepare::prepare,
};
use crate::{
    data::{ClipTokenizer, images::ListedImage},
    engine::{EngineHandle, ModelInfo, Precision},
    inputs::Target,
    rank::{Context, Error},
    train::MicrobatchBuilder,
};

/// Samples whose prompts are shown.
const PROMPTS_SHOWN: usize = 8;
/// The first asks for memory; the last one is as all others.
const TIMED_MICROBATCHES: u32 = 2;

/// What is rehearsed, and as what.
#[derive(Clone, Debug)]
pub struct RehearsalOptions {
    /// The job, its paths absolute.
    pub spec: JobSpec,
    /// Its work.
    pub job: TextualInversionSpec,
    /// What a rank would compute in here.
    pub precision: Precision,
    /// Its threads.
    pub threads: usize,
    /// Encode a picture and compute microbatches, to see how long it takes.
    pub compute: bool,
}

/// What the preparation found.
#[derive(Clone, Debug)]
pub struct Rehearsal {
    /// The model.
    pub model: ModelInfo,
    /// Its files, by content.
    pub model_hash: ContentHash,
    /// All pictures, by content.
    pub data_hash: ContentHash,
    /// The pictures of each concept, as they are prepared.
    pub pictures: Vec<Vec<(ListedImage, Target)>>,
    /// What is learned.
    pub words: Vec<RehearsedWord>,
    /// Prompts of the first samples, learned tokens in brackets; at most 8.
    pub prompts: Vec<String>,
    /// See [`MicrobatchBuilder::samples_of_pass`].
    pub epoch_samples: u64,
    /// What preparation warned of.
    pub warnings: Vec<String>,
    /// How long things took, if they were tried.
    pub timing: Option<Timing>,
}

/// A placeholder token and what it starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RehearsedWord {
    /// As it is written in prompts.
    pub token: String,
    /// One a vector.
    pub ids: Vec<i64>,
    /// As the job gives it: words, or the file of an embedding.
    pub initializer: String,
    /// What the model's tokenizer makes of words.
    pub initializer_ids: Vec<i64>,
}

/// Measured on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// One picture and its mirror image through the VAE.
    pub encode_seconds: f64,
    /// One microbatch, forward and backward.
    pub microbatch_seconds: f64,
    /// Memory of this process that no file backs, after the microbatches.
    pub private_bytes: u64,
}

/// Prepares the job as the only rank of a ring would, and takes the first microbatches.
///
/// # Errors
/// What would end the job: see [`Error`].
pub async fn rehearse(options: RehearsalOptions, context: &Context) -> Result<Rehearsal, Error> {
    let RehearsalOptions { spec, job, precision, threads, compute } = options;
    // 1. The rank's own preparation.
    let done =
        alone(spec, (precision, threads), context, async |rank| prepare(rank, &job, compute).await).await?;
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
    let (model_hash, data_hash) = (prepared.origin.model_hash, prepared.origin.data_hash);
    Ok(Rehearsal { model, model_hash, data_hash, pictures, words, prompts, epoch_samples, warnings, timing })
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
