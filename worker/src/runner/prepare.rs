//! Everything that a rank does alone before step 1: pictures, checkpoint, tokens, and which posteriors are known.

use std::{path::PathBuf, sync::Arc};

use ringtune_shared::{
    ids::ContentHash,
    spec::{JobSpec, LearnableProperty},
};

use super::{
    Context, RankError, images,
    journal::Journal,
    latents::{Common, Latents, Target, look_up},
    resume::{self, Done},
};
use crate::{
    data::{ClipTokenizer, Placeholders, Prompts, templates},
    engine::{LoadModel, ModelInfo, PredictionType, TrainingSize},
    session::{Assignment, Progress, RankEvent},
    train::{
        AdamWOptions, BatchOptions, EncodedImage, LrOptions, LrSchedule, MicrobatchBuilder, TrainState,
        TrainingSet,
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
    /// By content.
    pub(super) model_hash: ContentHash,
    /// By content.
    pub(super) data_hash: ContentHash,
    /// What the checkpoint's UNet predicts.
    pub(super) prediction_type: PredictionType,
    /// Steps that a checkpoint has done already.
    pub(super) done: Done,
}

/// Makes any microbatch of any step, but for the pictures.
#[derive(Debug)]
pub(super) struct Inputs {
    prompts: Prompts,
    options: BatchOptions,
}

impl Inputs {
    /// With the pictures' posteriors.
    pub(super) fn into_builder(self, images: Vec<Vec<EncodedImage>>) -> Result<MicrobatchBuilder, RankError> {
        let images = images.into_iter().flatten().collect();
        Ok(MicrobatchBuilder::new(TrainingSet { images, prompts: self.prompts }, self.options)?)
    }
}

/// Prepares a rank. Every failure names the job's field or the file.
pub(super) async fn prepare(
    assignment: &Assignment,
    context: &Context,
    journal: &Journal,
) -> Result<Prepared, RankError> {
    let spec = &assignment.spec;
    let progress = |stage, done, total| journal.event(RankEvent::Progress(Progress { stage, done, total }));
    // 1. Where it goes on, so that a wrong checkpoint is told before anything long is begun; and the pictures.
    let checkpoint = resume::fetch(assignment, context, journal).await?;
    let pictures =
        images::materialise(&spec.data.images, &context.artifacts, &context.cache, journal).await?;
    journal.info(format!("data: {} pictures, {}", pictures.files.len(), pictures.hash)).await;
    let data_hash = pictures.hash;
    // 2. The checkpoint; its hash is taken beside.
    progress("load", 0, 1).await;
    let folder = PathBuf::from(spec.model.base.strip_prefix("file://").unwrap_or(&spec.model.base));
    let (fingerprints, hashed) = (Arc::clone(&context.fingerprints), folder.clone());
    let training = TrainingSize {
        batch: spec.train.train_batch_size as usize,
        resolution: spec.train.resolution as usize,
    };
    let load = LoadModel {
        folder: folder.clone(),
        precision: assignment.precision,
        threads: assignment.threads,
        training: Some(training),
    };
    let model = context.engine.load(load).await?;
    let hashing = tokio::task::spawn_blocking(move || fingerprints.of_model(&hashed));
    progress("load", 1, 1).await;
    check_resolution(spec, &model)?;
    // 3. Words.
    let (owned, info, words_folder) = (spec.clone(), model.clone(), folder.join("tokenizer"));
    let words = tokio::task::spawn_blocking(move || words(&owned, &info, words_folder)).await??;
    let row = context.engine.token_row(words.initializer).await?;
    let model_hash = hashing.await??;
    journal.info(format!("model: {} ({model_hash})", describe(&model))).await;
    // 4. Which posteriors are known. The others are made when the ring is there, each by one rank.
    let (fingerprints, cache) = (Arc::clone(&context.fingerprints), context.latents.clone());
    let (owned, info) = (assignment.clone(), model.clone());
    let looking_up = tokio::task::spawn_blocking(move || {
        let train = &owned.spec.train;
        let target = Target { resolution: train.resolution, center_crop: train.center_crop };
        let common = Common { vae: fingerprints.of_vae(&folder)?, model: info, target };
        look_up(vec![pictures.files], &common, &owned, &cache)
    });
    let latents = looking_up.await??;
    // 5. The pure parts of training.
    let options = BatchOptions {
        seed: spec.train.seed,
        microbatches: spec.global_microbatches(),
        batch: spec.train.train_batch_size,
        scaling_factor: model.scaling_factor,
        num_train_timesteps: model.num_train_timesteps,
        noise_offset: spec.train.noise_offset,
        snr_gamma: above_zero(spec.train.snr_gamma),
    };
    let schedule = LrSchedule::new(LrOptions {
        curve: spec.train.lr_scheduler,
        base: spec.effective_learning_rate(),
        warmup_steps: spec.train.lr_warmup_steps,
        total_steps: spec.train.max_train_steps,
        cycles: spec.train.lr_num_cycles,
    })?;
    let adamw = AdamWOptions {
        beta1: spec.train.adam_beta1,
        beta2: spec.train.adam_beta2,
        epsilon: spec.train.adam_epsilon,
        weight_decay: spec.train.adam_weight_decay,
    };
    let state = TrainState::new(row.repeat(spec.train.num_vectors as usize), adamw)
        .with_max_grad_norm(above_zero(spec.train.max_grad_norm));
    let (state, done) = resume::restore(checkpoint, state, [model_hash, data_hash], assignment)?;
    Ok(Prepared {
        latents,
        inputs: Inputs { prompts: words.prompts, options },
        schedule,
        state,
        model_hash,
        data_hash,
        prediction_type: model.prediction_type,
        done,
    })
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

fn check_resolution(spec: &JobSpec, model: &ModelInfo) -> Result<(), RankError> {
    let (resolution, factor) = (spec.train.resolution as usize, model.vae_factor);
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

struct Words {
    prompts: Prompts,
    initializer: i64,
}

fn words(spec: &JobSpec, model: &ModelInfo, folder: PathBuf) -> Result<Words, RankError> {
    let train = &spec.train;
    let mut tokenizer = ClipTokenizer::open(&folder, model.max_text_length)?;
    if tokenizer.vocabulary_size() != model.vocab_size || tokenizer.length() != model.max_text_length {
        return Err(RankError::Field {
            field: "model.base",
            problem: format!(
                "its tokenizer has {} tokens and prompts of {}, its text encoder {} and {}",
                tokenizer.vocabulary_size(),
                tokenizer.length(),
                model.vocab_size,
                model.max_text_length
            ),
        });
    }
    // The initializer is looked up before the placeholders are there: it can never be one of them.
    let initializer = tokenizer.initializer_id(&train.initializer_token)?;
    let placeholders: Placeholders =
        tokenizer.add_placeholders(&train.placeholder_token, train.num_vectors as usize)?;
    let prompts = if train.templates.is_empty() {
        let templates: &[&str] = match train.learnable_property {
            LearnableProperty::Object => &templates::OBJECT,
            LearnableProperty::Style => &templates::STYLE,
        };
        Prompts::encode(&tokenizer, &placeholders, templates)?
    } else {
        Prompts::encode(&tokenizer, &placeholders, &train.templates)?
    };
    Ok(Words { prompts, initializer })
}
