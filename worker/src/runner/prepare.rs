//! Everything that a rank does alone before step 1: pictures, checkpoint, tokens, and which posteriors are known.

use std::{path::PathBuf, sync::Arc};

use ringtune_shared::{
    checkpoint::OpenCheckpoint,
    ids::ContentHash,
    job::kinds::textual_inversion::{TextualInversionSpec, TrainSpec},
};
use ringtune_sources::LocalModel;

use super::{
    Context, RankError,
    framing::Framing,
    images::{self, Pictures},
    initializers::{self, Initializer},
    journal::Journal,
    latents::{Common, Latents, look_up},
    model,
    preview::PreviewPlan,
    resume::{self, Done},
    words,
};
use crate::{
    data::{Prompts, prompts::Caption},
    engine::{LoadModel, ModelInfo, ModelOptions, PredictionType, TrainingSize},
    latents::Shelf,
    output::Concept,
    session::{Assignment, Progress, ProgressStage, RankEvent},
    train::{
        AdamWOptions, BatchOptions, ConceptSet, LrOptions, LrSchedule, MicrobatchBuilder, TrainState,
        TrainingImage, TrainingSet,
    },
};

/// What the steps start from.
#[derive(Debug)]
pub(super) struct Prepared {
    /// What is known of the pictures' posteriors.
    pub(super) latents: Latents,
    /// What microbatches are made of, once all posteriors are known.
    pub(super) inputs: Inputs,
    /// The learning rate of each step.
    pub(super) schedule: LrSchedule,
    /// The learned rows and the optimizer.
    pub(super) state: TrainState,
    /// The base model's files: held as long as they may be read.
    pub(super) base_model: Arc<LocalModel>,
    /// The checkpoint's tokenizer's folder.
    pub(super) tokenizer: PathBuf,
    /// What it is.
    pub(super) model: ModelInfo,
    /// By content.
    pub(super) model_hash: ContentHash,
    /// By content.
    pub(super) data_hash: ContentHash,
    /// What the checkpoint's UNet predicts.
    pub(super) prediction_type: PredictionType,
    /// Steps that a checkpoint has done already.
    pub(super) done: Done,
    /// What is learned, in the order of the rows.
    pub(super) concepts: Vec<Concept>,
    /// What pictures are drawn from while training goes on.
    pub(super) previews: Option<PreviewPlan>,
}

/// Makes any microbatch of any step, but for the pictures.
#[derive(Debug)]
pub(super) struct Inputs {
    /// Of each concept, with how often each of its pictures is shown.
    concepts: Vec<(Prompts, Vec<u32>)>,
    options: BatchOptions,
}

impl Inputs {
    /// With the posteriors of each concept's pictures.
    pub(super) fn into_builder(
        self,
        images: Vec<Vec<TrainingImage>>,
    ) -> Result<MicrobatchBuilder, RankError> {
        let concepts = images.into_iter().zip(self.concepts);
        let concepts =
            concepts.map(|(images, (prompts, repeats))| ConceptSet { images, repeats, prompts }).collect();
        Ok(MicrobatchBuilder::new(TrainingSet { concepts }, self.options)?)
    }
}

/// Prepares a rank. Every failure names the job's field or the file.
pub(super) async fn prepare(
    assignment: &Assignment,
    job: &TextualInversionSpec,
    context: &Context,
    journal: &Journal,
) -> Result<Prepared, RankError> {
    let (spec, train) = (&assignment.spec, &job.train);
    let progress = |stage, done, total| journal.event(RankEvent::Progress(Progress { stage, done, total }));
    // 1. Where it goes on or starts, so that a wrong file is told before anything long is begun; and the pictures.
    let Fetched { checkpoint, embeddings, pictures } = fetch(assignment, job, context, journal).await?;
    let data_hash = data_hash(&pictures);
    let count: usize = pictures.iter().map(|pictures| pictures.files.len()).sum();
    journal.info(format!("data: {count} pictures, {data_hash}")).await;
    // 2. The checkpoint; its hash is taken beside.
    let base_model = model::materialise(spec, &context.models, journal).await?;
    let folder = base_model.folder.clone();
    progress(ProgressStage::Load, 0, 1).await;
    let tokenizer = model::tokenizer_folder_of(spec, &folder)?;
    let (fingerprints, hashed) = (Arc::clone(&context.fingerprints), (folder.clone(), tokenizer.clone()));
    let hashed_variant = spec.common.model.variant.clone();
    let training = TrainingSize {
        batch: train.train_batch_size as usize,
        resolution: train.resolution as usize,
        bucketed: train.enable_bucket,
    };
    let load = LoadModel {
        folder: folder.clone(),
        options: ModelOptions { rescale_zero_snr: train.rescale_betas_zero_snr, ..model::options_of(spec) },
        precision: assignment.precision,
        threads: assignment.threads,
        training: Some(training),
    };
    let model = context.engine.load(load).await?;
    let hashing =
        tokio::task::spawn_blocking(move || fingerprints.of_model(&hashed.0, &hashed_variant, &hashed.1));
    progress(ProgressStage::Load, 1, 1).await;
    check_resolution(train, &model)?;
    let starts: Vec<Option<Vec<f32>>> = embeddings
        .into_iter()
        .map(|embedding| embedding.map(|embedding| embedding.rows(model.text_width)).transpose())
        .collect::<Result<_, _>>()?;
    // 3. Words.
    let (owned, info, words_folder) = (job.clone(), model.clone(), tokenizer.clone());
    let captions = pictures.iter().map(captions).collect();
    let (words, previews) =
        tokio::task::spawn_blocking(move || words::read(&owned, &info, &words_folder, captions)).await??;
    let mut rows = Vec::new();
    for (word, embedding) in words.iter().zip(starts) {
        rows.extend(embedding.unwrap_or_default());
        for initializer in &word.initializers {
            rows.extend(context.engine.token_row(*initializer).await?);
        }
    }
    let model_hash = hashing.await??;
    journal.info(format!("model: {} ({model_hash})", describe(&model))).await;
    // 4. Which posteriors are known. The others are made when the ring is there, each by one rank.
    let (fingerprints, cache) = (Arc::clone(&context.fingerprints), context.latents.clone());
    let overflow = context.rank_folder(assignment.key()).join("latents");
    let shelf = Shelf::new(cache.clone(), overflow, context.latent_memory_bytes);
    let (owned, info, vae_folder) = (assignment.clone(), model.clone(), folder.clone());
    let (files, repeats): (_, Vec<_>) =
        pictures.into_iter().map(|pictures| (pictures.files, pictures.repeats)).unzip();
    let framing = Framing::of(train);
    let looking_up = tokio::task::spawn_blocking(move || {
        let vae = fingerprints.of_vae(&vae_folder, &owned.spec.common.model.variant)?;
        let common = Common { vae, model: info, framing };
        look_up(files, &common, &owned, &cache, shelf)
    });
    let latents = looking_up.await??;
    // 5. The pure parts of training.
    let options = BatchOptions {
        seed: train.seed,
        microbatches: spec.global_microbatches(),
        batch: train.train_batch_size,
        scaling_factor: model.scaling_factor,
        num_train_timesteps: model.num_train_timesteps,
        noise_offset: train.noise_offset,
        snr_gamma: above_zero(train.snr_gamma),
        caption_dropout: train.caption_dropout,
        bucketed: train.enable_bucket,
    };
    let schedule = schedule(train, job.learning_rate_scale(&spec.common.cluster))?;
    let adamw = AdamWOptions {
        beta1: train.adam_beta1,
        beta2: train.adam_beta2,
        epsilon: train.adam_epsilon,
        weight_decay: train.adam_weight_decay,
    };
    let state = TrainState::new(rows, adamw)
        .with_max_grad_norm(above_zero(train.max_grad_norm))
        .with_patience(train.validation.early_stop_patience);
    let (state, done) = resume::restore(checkpoint, state, [model_hash, data_hash], assignment).await?;
    Ok(Prepared {
        latents,
        inputs: Inputs {
            concepts: words.into_iter().map(|word| word.prompts).zip(repeats).collect(),
            options,
        },
        schedule,
        state,
        base_model: Arc::new(base_model),
        model_hash,
        data_hash,
        prediction_type: model.prediction_type,
        done,
        concepts: Concept::list(&job.concepts()),
        tokenizer,
        model,
        previews,
    })
}

/// What a job takes from the coordinator.
struct Fetched {
    checkpoint: Option<OpenCheckpoint>,
    embeddings: Vec<Option<Initializer>>,
    pictures: Vec<Pictures>,
}

/// Fetches all that the job needs of the coordinator. The cache keeps its bound, also when something is not to be had.
async fn fetch(
    assignment: &Assignment,
    job: &TextualInversionSpec,
    context: &Context,
    journal: &Journal,
) -> Result<Fetched, RankError> {
    let spec = &assignment.spec;
    let mut needed = Vec::new();
    let fetching = async {
        let checkpoint = resume::fetch(assignment, context, journal).await?;
        let embeddings = initializers::fetch(spec, context).await?;
        let (client, cache) = (&context.artifacts, &context.cache);
        let pictures = images::materialise(job, client, cache, journal, &mut needed).await?;
        Ok::<_, RankError>(Fetched { checkpoint, embeddings, pictures })
    };
    let fetched = fetching.await;
    // Not before all are there: no source is to push out another's.
    let cache = context.cache.clone();
    tokio::task::spawn_blocking(move || cache.trim(&needed)).await?;
    fetched
}

fn captions(pictures: &Pictures) -> Vec<Caption> {
    let captions = pictures.files.iter().zip(&pictures.captions);
    captions.map(|(file, text)| Caption { file: file.name.clone(), text: text.clone() }).collect()
}

/// The hash of all pictures: their manifest's, and of several manifests that of their hashes, a line each.
fn data_hash(pictures: &[Pictures]) -> ContentHash {
    match pictures {
        [one] => one.hash,
        several => {
            let lines: String = several.iter().map(|pictures| format!("{}\n", pictures.hash)).collect();
            ContentHash::of(lines.as_bytes())
        }
    }
}

/// `scale`: what all rates are multiplied with.
fn schedule(train: &TrainSpec, scale: f64) -> Result<LrSchedule, RankError> {
    if let Some(rates) = &train.learning_rates {
        return Ok(LrSchedule::piecewise(rates.clone(), scale));
    }
    Ok(LrSchedule::new(LrOptions {
        curve: train.lr_scheduler,
        base: train.learning_rate * scale,
        warmup_steps: train.lr_warmup_steps,
        total_steps: train.max_train_steps,
        cycles: train.lr_num_cycles,
    })?)
}

/// Options that 0 switches off.
fn above_zero(number: f64) -> Option<f64> {
    (number > 0.0).then_some(number)
}

fn describe(model: &ModelInfo) -> String {
    format!(
        "text width {}, vocabulary {}, latents {} channels at 1/{}, {} timesteps, {}",
        model.text_width,
        model.vocab_size,
        model.latent_channels,
        model.vae_factor,
        model.num_train_timesteps,
        model.prediction_type.name()
    )
}

fn check_resolution(train: &TrainSpec, model: &ModelInfo) -> Result<(), RankError> {
    let (resolution, factor) = (train.resolution as usize, model.vae_factor);
    if train.enable_bucket {
        let TrainSpec { bucket_reso_steps: steps, min_bucket_reso: shortest, .. } = *train;
        // Kohya's buckets count in steps from the shortest side on.
        let sides = [("train.bucket_reso_steps", steps), ("train.min_bucket_reso", shortest)];
        let wrong = sides.into_iter().find(|(_, side)| !(*side as usize).is_multiple_of(factor));
        if let Some((field, side)) = wrong {
            let problem = format!("{side} is not a multiple of this checkpoint's VAE factor {factor}");
            return Err(RankError::Field { field, problem });
        }
        // Nothing but previews is of this size, then.
        if train.previews.validation_prompt.is_empty() {
            return Ok(());
        }
    }
    if resolution.is_multiple_of(factor) {
        return Ok(());
    }
    let below = resolution / factor * factor;
    let near = if below == 0 { factor.to_string() } else { format!("{below} or {}", below + factor) };
    Err(RankError::Field {
        field: "train.resolution",
        problem: format!(
            "{resolution} is not a multiple of this checkpoint's VAE factor {factor}; near: {near}"
        ),
    })
}
