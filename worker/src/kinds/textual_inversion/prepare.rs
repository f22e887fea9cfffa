//! Everything that a rank does alone before step 1: pictures, base model, tokens, and which posteriors are known.

use std::{path::PathBuf, sync::Arc};

use ringtune_shared::{
    checkpoint::OpenCheckpoint,
    ids::ContentHash,
    job::{
        kinds::textual_inversion::{ConceptSpec, TextualInversionSpec},
        pictures::{FolderSpec, TrainSpec},
    },
};
use ringtune_sources::LocalModel;

use super::{
    initializers::{self, Initializer},
    words,
};
use crate::{
    data::{Prompts, buckets::BucketOptions, images::ListedImage, prompts::Caption},
    engine::{ModelInfo, PredictionType, TrainingSize},
    fault::Refusal,
    inputs::{Common, Framing, PictureFolder, Pictures, Posteriors, look_up, materialise},
    latents::Shelf,
    output::{Concept, Taught},
    rank::{Error, Rank},
    train::{
        AdamWOptions, BatchOptions, ConceptSet, LrOptions, LrSchedule, MicrobatchBuilder, TrainState,
        TrainingImage, TrainingSet,
    },
    training::{self, Named, Origin, PreviewPlan, Start},
    while_wanted,
};

/// What it learns from.
const PICTURES: Named = Named { what: "set of pictures (data.images)", key: "data.images" };

/// What the steps start from.
#[derive(Debug)]
pub(super) struct Prepared {
    /// What is known of the pictures' posteriors.
    pub(super) posteriors: Posteriors,
    /// What microbatches are made of, once all posteriors are known.
    pub(super) inputs: Inputs,
    /// The learning rate of each step.
    pub(super) schedule: LrSchedule,
    /// The learned rows and the optimizer.
    pub(super) state: TrainState,
    /// The base model's files: held as long as they may be read.
    pub(super) base_model: Arc<LocalModel>,
    /// The base model's tokenizer's folder.
    pub(super) tokenizer: PathBuf,
    /// What it is.
    pub(super) model: ModelInfo,
    /// What the bits follow from.
    pub(super) origin: Origin,
    /// What the base model's UNet predicts.
    pub(super) prediction_type: PredictionType,
    /// Steps that a checkpoint has done already.
    pub(super) done: u64,
    /// What is learned, in the order of the rows.
    pub(super) concepts: Vec<Concept>,
    /// What pictures are drawn from while training goes on.
    pub(super) previews: Option<PreviewPlan>,
}

/// Makes any microbatch of any step, but for the pictures.
#[derive(Clone, Debug)]
pub(super) struct Inputs {
    /// Of each concept, with how often each of its pictures is shown.
    concepts: Vec<(Prompts, Vec<u32>)>,
    options: BatchOptions,
}

impl Inputs {
    /// With the posteriors of each concept's pictures.
    pub(super) fn into_builder(self, images: Vec<Vec<TrainingImage>>) -> Result<MicrobatchBuilder, Error> {
        let concepts = images.into_iter().zip(self.concepts);
        let concepts =
            concepts.map(|(images, (prompts, repeats))| ConceptSet { images, repeats, prompts }).collect();
        Ok(MicrobatchBuilder::new(TrainingSet { concepts }, self.options)?)
    }
}

/// Prepares a rank, the engine's weights for its gradients too where it `computes` any. Every failure names the job's field
/// or the file.
pub(super) async fn prepare(
    rank: &Rank,
    job: &TextualInversionSpec,
    computes: bool,
) -> Result<Prepared, Error> {
    let Rank { assignment, context, journal, .. } = rank;
    let (spec, train) = (&assignment.spec, &job.train);
    // 1. Where it goes on or starts, so that a wrong file is told before anything long is begun; and the pictures.
    let Fetched { checkpoint, embeddings, pictures } = fetch(rank, job).await?;
    let data_hash = data_hash(&pictures);
    let count: usize = pictures.iter().map(|pictures| pictures.files.len()).sum();
    journal.info(format!("data: {count} pictures, {data_hash}")).await;
    // 2. The base model; its hash is taken beside.
    let training =
        TrainingSize { batch: train.train_batch_size as usize, resolution: train.resolution as usize };
    let mut loaded = rank.load_model(Some(training), train.rescale_betas_zero_snr).await?;
    let model = loaded.info.clone();
    check_resolution(train, &model)?;
    let starts: Vec<Option<Vec<f32>>> = embeddings
        .into_iter()
        .map(|embedding| embedding.map(|embedding| embedding.rows(model.text_width)).transpose())
        .collect::<Result<_, _>>()?;
    // 3. Words.
    let (owned, info, words_folder) = (job.clone(), model.clone(), loaded.tokenizer.clone());
    let captions = pictures.iter().map(captions).collect();
    let (words, previews) =
        ringtune_shared::tasks::spawn_blocking(move || words::read(&owned, &info, &words_folder, captions))
            .await??;
    let mut rows = Vec::new();
    for (word, embedding) in words.iter().zip(starts) {
        rows.extend(embedding.unwrap_or_default());
        for initializer in &word.initializers {
            rows.extend(context.engine.token_row(*initializer).await.map_err(Error::of_engine)?);
        }
    }
    // 4. Which posteriors are known. The others are made when the ring is there, each by one rank; but of a model that is
    //    still hashed, which takes seconds of one core, the first one meanwhile.
    let (files, repeats): (_, Vec<_>) =
        pictures.into_iter().map(|pictures| (pictures.files, pictures.repeats)).unzip();
    let inputs = Inputs {
        concepts: words.into_iter().map(|word| word.prompts).zip(repeats).collect(),
        options: batch_options(train, &model, spec.global_microbatches()),
    };
    let schedule = schedule(train, train.learning_rate_scale(&spec.common.cluster))?;
    let begins = checkpoint.is_none() && !loaded.is_hashed();
    let (local, info) = (Arc::clone(&loaded.local), loaded.info.clone());
    // On the heap: it is large, and part of whatever waits for it.
    let beside = Box::pin(async {
        if computes {
            context.engine.lay_out().await.map_err(Error::of_engine)?;
        }
        let mut posteriors = known_posteriors(rank, train, &local, info, files).await?;
        if computes && begins {
            encode_first(rank, &mut posteriors, inputs.clone()).await?;
        }
        Ok::<_, Error>(posteriors)
    });
    let (model_hash, posteriors) = loaded.finish(journal, beside).await?;
    journal.info(format!("model: {} ({model_hash})", describe(&model))).await;
    // 5. Where training starts or goes on.
    let Start { done, state, origin } = Start::of(checkpoint, model_hash, PICTURES, data_hash, assignment)?;
    let mut rows_and_optimizer = fresh(train, rows);
    if let Some(state) = state {
        let mut state = training::read(state, assignment).await?;
        rows_and_optimizer = rows_and_optimizer.restored(&mut state)?;
        state.finish()?;
    }
    Ok(Prepared {
        posteriors,
        inputs,
        schedule,
        state: rows_and_optimizer,
        base_model: Arc::clone(&loaded.local),
        origin,
        prediction_type: model.prediction_type,
        done,
        concepts: Concept::list(job.concepts().into_iter().map(taught).collect()),
        tokenizer: loaded.tokenizer,
        model,
        previews,
    })
}

/// Looks up what this worker knows of the pictures of each concept.
async fn known_posteriors(
    rank: &Rank,
    train: &TrainSpec,
    local: &LocalModel,
    model: ModelInfo,
    files: Vec<Vec<ListedImage>>,
) -> Result<Posteriors, Error> {
    let Rank { assignment, context, folder, journal, .. } = rank;
    let (fingerprints, models) = (Arc::clone(&context.fingerprints), local.folder.clone());
    let variant = assignment.spec.common.model.variant.clone();
    let hashing = while_wanted::spawn_blocking(move |still| fingerprints.of_vae(&models, &variant, still));
    let common = Common { vae: hashing.await??, model, framing: framing(train) };
    let cache = context.latents.clone();
    let shelf = Shelf::new(cache.clone(), folder.join("latents"), context.latent_memory_bytes);
    look_up(files, common, assignment, cache, shelf, journal).await
}

/// Encodes of what step 1 shows what this rank would be the first to encode.
async fn encode_first(rank: &Rank, posteriors: &mut Posteriors, inputs: Inputs) -> Result<(), Error> {
    let Rank { assignment, context, journal, .. } = rank;
    let Some(number) = assignment.rank else { return Ok(()) };
    let images = posteriors.by_concept();
    let shown = move || Ok::<_, Error>(inputs.into_builder(images)?.shown(1));
    let shown = ringtune_shared::tasks::spawn_blocking(shown).await??;
    posteriors.encode_early(&shown, number, assignment.ring.members.len(), context, journal).await
}

fn taught(concept: ConceptSpec) -> Taught {
    Taught {
        placeholder_token: concept.placeholder_token,
        initializer_token: concept.initializer_token,
        initializer_embedding: concept.initializer_embedding,
        num_vectors: concept.num_vectors as usize,
    }
}

/// Before the first step.
fn fresh(train: &TrainSpec, rows: Vec<f32>) -> TrainState {
    let adamw = AdamWOptions {
        beta1: train.adam_beta1,
        beta2: train.adam_beta2,
        epsilon: train.adam_epsilon,
        weight_decay: train.adam_weight_decay,
    };
    TrainState::new(rows, adamw)
        .with_max_grad_norm(above_zero(train.max_grad_norm))
        .with_patience(train.validation.early_stop_patience)
}

fn batch_options(train: &TrainSpec, model: &ModelInfo, microbatches: u32) -> BatchOptions {
    BatchOptions {
        seed: train.seed,
        microbatches,
        batch: train.train_batch_size,
        scaling_factor: model.scaling_factor,
        num_train_timesteps: model.num_train_timesteps,
        noise_offset: train.noise_offset,
        snr_gamma: above_zero(train.snr_gamma),
        caption_dropout: train.caption_dropout,
        bucketed: train.enable_bucket,
    }
}

/// How pictures are brought to the sizes that the job trains at.
fn framing(train: &TrainSpec) -> Framing {
    if !train.enable_bucket {
        return Framing::Square { resolution: train.resolution, center_crop: train.center_crop };
    }
    Framing::buckets(BucketOptions {
        resolution: train.resolution,
        min_bucket_reso: train.min_bucket_reso,
        max_bucket_reso: train.max_bucket_reso,
        bucket_reso_steps: train.bucket_reso_steps,
        bucket_no_upscale: train.bucket_no_upscale,
    })
}

/// What a job takes from the coordinator.
struct Fetched {
    checkpoint: Option<OpenCheckpoint>,
    embeddings: Vec<Option<Initializer>>,
    pictures: Vec<Pictures>,
}

/// Fetches all that the job needs of the coordinator. The cache keeps its bound, also when something is not to be had.
async fn fetch(rank: &Rank, job: &TextualInversionSpec) -> Result<Fetched, Error> {
    let Rank { assignment, context, journal, .. } = rank;
    let mut needed = Vec::new();
    let fetching = async {
        let checkpoint = training::fetch(rank).await?;
        let embeddings = initializers::fetch(&assignment.spec, context).await?;
        let (client, cache) = (&context.artifacts, &context.cache);
        let wanted = wanted_pictures(job);
        let pictures = materialise(wanted, &context.access, client, cache, journal, &mut needed).await?;
        Ok::<_, Error>(Fetched { checkpoint, embeddings, pictures })
    };
    let fetched = fetching.await;
    // Not before all are there: no source is to push out another's.
    let cache = context.cache.clone();
    ringtune_shared::tasks::spawn_blocking(move || cache.trim(&needed)).await?;
    fetched
}

/// The folders of each concept.
fn wanted_pictures(job: &TextualInversionSpec) -> Vec<Vec<PictureFolder>> {
    let of_concept = |(index, concept): (usize, ConceptSpec)| {
        let captions = concept.uses_captions();
        let folder = |(key, folder): (String, FolderSpec)| PictureFolder {
            field: job.concept_field(index, &key),
            place: folder.images,
            captions,
            repeats: folder.repeats,
        };
        concept.folders().into_iter().map(folder).collect()
    };
    job.concepts().into_iter().enumerate().map(of_concept).collect()
}

fn captions(pictures: &Pictures) -> Vec<Caption> {
    let captions = pictures.files.iter().zip(&pictures.captions);
    captions.map(|(file, text)| Caption { file: file.file.name.clone(), text: text.clone() }).collect()
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
fn schedule(train: &TrainSpec, scale: f64) -> Result<LrSchedule, Error> {
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

fn check_resolution(train: &TrainSpec, model: &ModelInfo) -> Result<(), Error> {
    let (resolution, factor) = (train.resolution as usize, model.vae_factor);
    if train.enable_bucket {
        let TrainSpec { bucket_reso_steps: steps, min_bucket_reso: shortest, .. } = *train;
        // Kohya's buckets count in steps from the shortest side on.
        let sides = [("train.bucket_reso_steps", steps), ("train.min_bucket_reso", shortest)];
        let wrong = sides.into_iter().find(|(_, side)| !(*side as usize).is_multiple_of(factor));
        if let Some((field, side)) = wrong {
            let problem = format!("{side} is not a multiple of this model's VAE factor {factor}");
            return Err(Refusal::of(field, problem).into());
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
    let problem = format!("{resolution} is not a multiple of this model's VAE factor {factor}; near: {near}");
    Err(Refusal::of("train.resolution", problem).into())
}
