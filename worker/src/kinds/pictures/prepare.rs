//! What a rank does alone before step 1 with the pictures of its job.

use std::{future::Future, path::Path, sync::Arc};

use ringtune_shared::{
    ids::ContentHash,
    job::{
        JobSpec, LrScheduler,
        pictures::{
            CLASS_IMAGES, DataSpec, DenoiserSpec, FolderSpec, PromptSpec, TrainSpec, concepts::ConceptSpec,
        },
    },
};
use ringtune_sources::LocalModel;

use super::{
    masks::{self, Masks},
    samples::{Inputs, Material},
};
use crate::{
    base_model::Loaded,
    data::{
        ClipTokenizer, DrawnSamples, Prompts, buckets::BucketOptions, images::ListedImage, prompts::Caption,
    },
    engine::ModelInfo,
    fault::Refusal,
    inputs::{Common, Framing, PictureFolder, Pictures, PicturesFrom, Posteriors, look_up, materialise},
    latents::Shelf,
    rank::{Error, Rank},
    session::Assignment,
    train::{AdamWOptions, BatchOptions, LrOptions, LrSchedule},
    training::{Expanded, Named, PreviewPlan, WantedPreviews},
    while_wanted,
};

/// What it learns from.
pub(in crate::kinds) fn named(data: &DataSpec) -> Named {
    match data.source.is_empty() {
        true => Named { what: "set of pictures (data.images)", key: "data.images" },
        false => Named { what: "set of pictures (data.source)", key: "data.source" },
    }
}

/// The source of a job, if it has one, with its `captions` or without.
pub(in crate::kinds) fn wanted_source(data: &DataSpec, captions: bool) -> Option<PictureFolder> {
    (!data.source.is_empty()).then(|| PictureFolder {
        field: "data.source".to_owned(),
        place: data.source.clone(),
        from: PicturesFrom::Source,
        captions: captions.then(|| data.caption_column.clone()),
        repeats: 1,
    })
}

/// A folder of a job, which `field` names, with its `captions` or without.
pub(in crate::kinds) fn wanted(field: String, folder: FolderSpec, captions: bool) -> PictureFolder {
    PictureFolder {
        field,
        place: folder.images,
        from: PicturesFrom::Folder,
        captions: captions.then_some(folder.caption_column),
        repeats: folder.repeats,
    }
}

/// The samples that no file has, if the job has some.
pub(in crate::kinds) fn wanted_samples(prompt: &PromptSpec, seed: u64) -> Option<PictureFolder> {
    prompt.synthetic_samples.map(|count| PictureFolder {
        field: "data.synthetic_samples".to_owned(),
        place: String::new(),
        from: PicturesFrom::Drawn(DrawnSamples { seed, count }),
        captions: None,
        repeats: 1,
    })
}

/// The folders of each concept. `field`: the full name of a concept's field, for messages.
pub(in crate::kinds) fn wanted_concepts(
    concepts: Vec<ConceptSpec>,
    field: impl Fn(usize, &str) -> String,
) -> Vec<Vec<PictureFolder>> {
    let of_concept = |(index, concept): (usize, ConceptSpec)| {
        let captions = concept.uses_captions();
        let folders = concept.folders().into_iter();
        folders.map(|(key, folder)| wanted(field(index, &key), folder, captions)).collect()
    };
    concepts.into_iter().enumerate().map(of_concept).collect()
}

/// The folder of the class, if the job has one.
pub(in crate::kinds) fn wanted_class(prompt: &PromptSpec) -> Option<PictureFolder> {
    (!prompt.class_images.is_empty()).then(|| PictureFolder {
        field: CLASS_IMAGES.to_owned(),
        place: prompt.class_images.clone(),
        from: PicturesFrom::Folder,
        captions: None,
        repeats: 0,
    })
}

/// The pictures of a job, and what says which parts of them count.
#[derive(Debug)]
pub(in crate::kinds) struct Fetched {
    /// Of each group of pictures that share prompts; those of the class come last.
    pub(in crate::kinds) pictures: Vec<Pictures>,
    /// Hash of all of it.
    pub(in crate::kinds) hash: ContentHash,
    masks: Masks,
}

/// Fetches all that the job needs of the coordinator: what `others` fetches, then the pictures and their masks. The cache keeps its
/// bound, also when something is not to be had.
///
/// # Errors
/// It cannot be fetched.
pub(in crate::kinds) async fn fetch<T>(
    rank: &Rank,
    others: impl Future<Output = Result<T, Error>>,
    data: &DataSpec,
    mut wanted: Vec<Vec<PictureFolder>>,
) -> Result<(T, Fetched), Error> {
    let Rank { context, journal, .. } = rank;
    let mut needed = Vec::new();
    let groups = wanted.len();
    wanted.extend(masks::wanted(data).map(|folder| vec![folder]));
    let fetching = async {
        let others = others.await?;
        let pictures = materialise(wanted, context, journal, &mut needed).await?;
        Ok::<_, Error>((others, pictures))
    };
    let fetched = fetching.await;
    // Not before all are there: no source is to push out another's.
    let cache = context.cache.clone();
    ringtune_shared::tasks::spawn_blocking(move || cache.trim(&needed)).await?;
    let (others, mut pictures) = fetched?;
    let hash = data_hash(&pictures);
    let masks = pictures.split_off(groups);
    Ok((others, Fetched { pictures, hash, masks: Masks::of(data, masks.first())? }))
}

/// What microbatches are made of, and for what.
#[derive(Debug)]
pub(in crate::kinds) struct Making<'a> {
    pub(in crate::kinds) train: &'a TrainSpec,
    /// None: no part of the network is trained.
    pub(in crate::kinds) denoiser: Option<&'a DenoiserSpec>,
    /// The last group is the class.
    pub(in crate::kinds) has_class: bool,
    pub(in crate::kinds) fetched: Fetched,
    /// Of each group.
    pub(in crate::kinds) prompts: Vec<Prompts>,
    /// The rank computes gradients.
    pub(in crate::kinds) computes: bool,
    /// It begins at step 1.
    pub(in crate::kinds) begins: bool,
}

/// Looks up which posteriors are known; the others are made when the ring is there, each by one rank. But of a model that is
/// still hashed, which takes seconds of one core, the first one meanwhile, where the rank `computes`; then the engine's weights
/// are laid out too. Gives the model's hash.
///
/// # Errors
/// A picture, its mask or the model cannot be read; the engine's.
pub(in crate::kinds) async fn material(
    rank: &Rank,
    loaded: &mut Loaded,
    making: Making<'_>,
) -> Result<(ContentHash, Material), Error> {
    let Rank { assignment, context, journal, .. } = rank;
    let options = batch_options(&making, &loaded.info, assignment.spec.global_microbatches());
    let Making { train, denoiser, has_class, fetched, prompts, computes, begins } = making;
    let keeps = denoiser.is_none_or(|denoiser| denoiser.cache_latents);
    let Fetched { pictures, masks, .. } = fetched;
    if let Some(warning) = too_long(&prompts, loaded.info.max_text_length) {
        journal.warn(warning).await;
    }
    let held = pictures.iter().flat_map(|pictures| pictures.held.clone()).collect();
    let (files, repeats): (_, Vec<_>) =
        pictures.into_iter().map(|pictures| (pictures.files, pictures.repeats)).unzip();
    let mut inputs =
        Inputs { concepts: prompts.into_iter().zip(repeats).collect(), masks: Vec::new(), options };
    let encodes = begins && !loaded.is_hashed();
    let (local, info) = (Arc::clone(&loaded.local), loaded.info.clone());
    // On the heap: it is large, and part of whatever waits for it.
    let beside = Box::pin(async {
        if computes {
            context.engine.lay_out().await.map_err(Error::of_engine)?;
        }
        let mut posteriors = known_posteriors(rank, (train, keeps), &local, info, files).await?;
        if computes && encodes {
            encode_first(rank, &mut posteriors, inputs.clone()).await?;
        }
        Ok::<_, Error>(posteriors)
    });
    let (model_hash, posteriors) = loaded.finish(journal, beside).await?;
    journal.info(format!("model: {} ({model_hash})", describe(&loaded.info))).await;
    let mut masked = posteriors.listed();
    masked.truncate(masked.len() - usize::from(has_class));
    inputs.masks = masks.of_pictures(masked, loaded.info.vae_factor, rank).await?;
    Ok((model_hash, Material { posteriors, inputs, held }))
}

/// What is said of captions whose end is cut off. A prompt has `length` tokens.
fn too_long(prompts: &[Prompts], length: usize) -> Option<String> {
    let mut files = prompts.iter().flat_map(Prompts::cut_off);
    let (first, count) = (files.next()?, files.count() + 1);
    let pictures = if count == 1 { "1 picture".to_owned() } else { format!("{count} pictures") };
    Some(format!(
        "captions: those of {pictures} have more than the {} tokens that a prompt holds, and are cut off there, such as \
         {first}'s",
        length - 2
    ))
}

/// AdamW, as the job wants it.
pub(in crate::kinds) fn adamw(train: &TrainSpec) -> AdamWOptions {
    AdamWOptions {
        beta1: train.adam_beta1,
        beta2: train.adam_beta2,
        epsilon: train.adam_epsilon,
        weight_decay: train.adam_weight_decay,
    }
}

/// Looks up what this worker knows of the pictures of each group.
async fn known_posteriors(
    rank: &Rank,
    (train, keeps): (&TrainSpec, bool),
    local: &LocalModel,
    model: ModelInfo,
    files: Vec<Vec<ListedImage>>,
) -> Result<Posteriors, Error> {
    let Rank { assignment, context, folder, journal, .. } = rank;
    let (fingerprints, models) = (Arc::clone(&context.fingerprints), local.folder.clone());
    let variant = assignment.spec.common.model.variant.clone();
    let hashing = while_wanted::spawn_blocking(move |still| fingerprints.of_vae(&models, &variant, still));
    let common = Common { vae: hashing.await??, model, framing: framing(train), keeps };
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

fn batch_options(making: &Making<'_>, model: &ModelInfo, microbatches: u32) -> BatchOptions {
    let Making { train, denoiser, has_class, .. } = *making;
    BatchOptions {
        seed: train.seed,
        microbatches,
        batch: train.train_batch_size,
        scaling_factor: model.scaling_factor,
        num_train_timesteps: model.num_train_timesteps,
        min_timestep: denoiser.map_or(0, |denoiser| denoiser.min_timestep as usize),
        noise_offset: train.noise_offset,
        random_flip: denoiser.is_none_or(|denoiser| denoiser.random_flip),
        input_perturbation: denoiser.map_or(0.0, |denoiser| denoiser.input_perturbation),
        snr_gamma: above_zero(train.snr_gamma),
        caption_dropout: train.caption_dropout,
        prior_loss_weight: denoiser.filter(|_| has_class).map(|denoiser| denoiser.prior_loss_weight),
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

/// The words of pictures.
pub(in crate::kinds) fn captions(pictures: &Pictures) -> Vec<Caption> {
    let captions = pictures.files.iter().zip(&pictures.captions);
    captions.map(|(file, texts)| Caption { file: file.file.name.clone(), texts: texts.clone() }).collect()
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

/// The schedule of a rate: of `train.learning_rate`, and of what is ordered in its place, or of a rate of its own.
///
/// # Errors
/// A schedule that its steps have no room for.
pub(in crate::kinds) fn schedule(
    job: &JobSpec,
    train: &TrainSpec,
    rate_of_its_own: Option<f64>,
) -> Result<LrSchedule, Error> {
    let scale = train.learning_rate_scale(&job.common.cluster);
    let mut schedule = match &train.learning_rates {
        Some(rates) => {
            let first = train.learning_rate;
            let other = rate_of_its_own.filter(|rate| first > 0.0 && *rate != first);
            LrSchedule::piecewise(rates.clone(), scale * other.map_or(1.0, |rate| rate / first))
        }
        None => curve(train, train.lr_scheduler, rate_of_its_own.unwrap_or(train.learning_rate) * scale)?,
    };
    // A list of rates says nothing of the shape behind a rate that takes its place.
    let shape = if train.learning_rates.is_some() { LrScheduler::Constant } else { train.lr_scheduler };
    for (after, rate) in job.common.orders.rates().filter(|_| rate_of_its_own.is_none()) {
        let first = after * u64::from(job.local_steps()) + 1;
        schedule = schedule.then(first, curve(train, shape, rate * scale)?);
    }
    Ok(schedule)
}

/// The schedules of a job's rates, the first of which is `train.learning_rate` itself. `others`: where they are not that one.
///
/// # Errors
/// A schedule that its steps have no room for.
pub(in crate::kinds) fn schedules(
    assignment: &Assignment,
    train: &TrainSpec,
    others: [Option<f64>; 2],
) -> Result<[LrSchedule; 3], Error> {
    let [first, second, third] =
        [None, others[0], others[1]].map(|own| schedule(&assignment.spec, train, own));
    Ok([first?, second?, third?])
}

fn curve(train: &TrainSpec, curve: LrScheduler, base: f64) -> Result<LrSchedule, Error> {
    Ok(LrSchedule::new(LrOptions {
        curve,
        base,
        warmup_steps: train.lr_warmup_steps,
        total_steps: train.max_train_steps,
        cycles: train.lr_num_cycles,
    })?)
}

/// Options that 0 switches off.
pub(in crate::kinds) fn above_zero(number: f64) -> Option<f64> {
    (number > 0.0).then_some(number)
}

/// For people.
pub(in crate::kinds) fn describe(model: &ModelInfo) -> String {
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

/// That the model has noise of the levels that the job asks for.
///
/// # Errors
/// A timestep that is none of its schedule.
pub(in crate::kinds) fn check_timesteps(denoiser: &DenoiserSpec, model: &ModelInfo) -> Result<(), Refusal> {
    let (least, count) = (denoiser.min_timestep, model.num_train_timesteps);
    if (least as usize) < count {
        return Ok(());
    }
    let problem =
        format!("got {least}; this model's schedule has timesteps 0 to {}", count.saturating_sub(1));
    Err(Refusal::of("train.min_timestep", problem))
}

/// That pictures can be of the sizes that the job asks for.
///
/// # Errors
/// The option that is no multiple of what one of the model's latents stands for.
pub(in crate::kinds) fn check_resolution(train: &TrainSpec, model: &ModelInfo) -> Result<(), Error> {
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

/// Opens the base model's tokenizer. Blocks.
///
/// # Errors
/// It cannot be read, or is not the text encoder's.
pub(in crate::kinds) fn open_tokenizer(folder: &Path, model: &ModelInfo) -> Result<ClipTokenizer, Error> {
    let mut tokenizer = ClipTokenizer::open(folder, model.max_text_length)?;
    if tokenizer.fit(model.vocab_size, model.max_text_length) {
        return Ok(tokenizer);
    }
    let problem = format!(
        "its tokenizer has {} tokens and prompts of {}, its text encoder {} and {}",
        tokenizer.vocabulary_size(),
        tokenizer.length(),
        model.vocab_size,
        model.max_text_length
    );
    Err(Refusal::of("model.base", problem).into())
}

/// What pictures are drawn from while training goes on. `words`: those that are learned.
///
/// # Errors
/// See [`PreviewPlan::new`].
pub(in crate::kinds) fn previews_of(
    train: &TrainSpec,
    model: &ModelInfo,
    tokenizer: Arc<ClipTokenizer>,
    words: Vec<Expanded>,
) -> Result<PreviewPlan, Error> {
    let (prompt, count) = (&train.previews.validation_prompt, train.previews.num_validation_images);
    let wanted = WantedPreviews { prompt, count, side: train.resolution as usize, seed: train.seed };
    PreviewPlan::new(wanted, model, tokenizer, words)
}
