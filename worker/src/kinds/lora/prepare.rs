//! All that a rank does alone before it is ready.

use std::{path::Path, path::PathBuf, sync::Arc};

use ringtune_shared::{
    job::FilePlace,
    job::kinds::lora::{LoraSpec, OPTIONS_WITHOUT_EFFECT},
    lora::LARGEST_OF_A_JOB,
};
use serde_json::{Value, json};

use super::{
    adapters::adapters,
    initializer,
    model::{LoraModel, Trace, options},
    results::Results,
};
use crate::{
    base_model::base_model_name,
    data::{
        Placeholders, Prompts,
        caption_words::CaptionOptions,
        prompts::{Caption, ConceptWords},
    },
    engine::{AdaptableLayer, Adapter, BucketSizes, ModelInfo, OpenAdapters, TrainingSize},
    inputs::{self, file_bytes},
    kinds::pictures::{
        Making, Material, Samples, Tracing, captions, check_resolution, deciding_data, fetch, material,
        named, open_tokenizer, previews_of, schedule, wanted, wanted_class, wanted_source,
    },
    lora_layers::model_layers,
    parameters::{ParameterTrainee, Prepared},
    rank::{Error, Rank},
    session::Assignment,
    training::{self, Course, Origin, PreviewPlan, Start, deciding_job},
};

/// What a rank knows and has before its first step.
pub(super) struct Ready {
    pub(super) material: Material,
    pub(super) model: ModelInfo,
    pub(super) adapters: Vec<(Adapter, AdaptableLayer)>,
    /// The names of all layers that adapters can stand beside.
    pub(super) layers: Vec<String>,
    /// The base model's tokenizer's folder.
    pub(super) tokenizer: PathBuf,
    pub(super) prepared: Prepared<()>,
    previews: Option<PreviewPlan>,
}

/// Prepares a rank. Every failure names the job's field or the file.
pub(super) async fn prepare(rank: &Rank, job: LoraSpec) -> Result<ParameterTrainee<LoraModel>, Error> {
    let tracing = Tracing::of(rank)?;
    let Ready { material, model, adapters, layers, prepared, previews, .. } = ready(rank, &job, true).await?;
    let folder = tracing.create(rank, 1).await?;
    let proves = rank.assignment.proof.is_some();
    let facts = facts(&rank.assignment, &job, &prepared.origin)?;
    let scale = job.train.learning_rate_scale(&rank.assignment.spec.common.cluster);
    let text_rate = job.text_encoder.text_encoder_learning_rate.unwrap_or(job.train.learning_rate);
    let model = LoraModel {
        samples: Samples::new(material, prepared.course.total, rank),
        schedule: schedule(&job.train, job.train.learning_rate, scale)?,
        text_schedule: schedule(&job.train, text_rate, scale)?,
        previews: previews.filter(|_| !proves),
        trace: folder.map(|folder| Trace { folder, layers: Arc::new(layers) }),
        results: Results::new(&rank.assignment.spec.common.name, &job, &model, adapters, facts),
        job,
    };
    prepared.with(model).into_trainee(rank).await
}

/// Everything but what the steps take it with; the engine's weights are laid out too where the rank `computes`.
pub(super) async fn ready(rank: &Rank, job: &LoraSpec, computes: bool) -> Result<Ready, Error> {
    let Rank { assignment, context, journal, .. } = rank;
    let train = &job.train;
    // 1. Where it goes on, so that a wrong file is told before anything long is begun; and the pictures.
    let has_captions = !job.templates().is_empty();
    let folders = job.data.folders().into_iter();
    let folders = folders.map(|(key, folder)| wanted(format!("data.{key}"), folder, has_captions));
    let folders = folders.chain(wanted_source(&job.data, has_captions)).collect();
    let class = wanted_class(&job.prompt);
    let has_class = class.is_some();
    let wanted = [folders].into_iter().chain(class.map(|folder| vec![folder])).collect();
    let (checkpoint, mut fetched) = Box::pin(fetch(rank, training::fetch(rank), &job.data, wanted)).await?;
    let data_hash = fetched.hash;
    let mut said = format!("data: {} pictures", fetched.pictures.first().map_or(0, |own| own.files.len()));
    if let Some(class) = fetched.pictures.get_mut(1) {
        class.keep_first(job.denoiser.num_class_images as usize);
        said += &format!(" and {} of the class", class.files.len());
    }
    journal.info(format!("{said}, {data_hash}")).await;
    // 2. The base model; its hash is taken beside. The adapters, whose layers are laid out otherwise.
    // Those of the class stand behind the others.
    let batch = train.train_batch_size as usize * (1 + usize::from(has_class));
    let training = TrainingSize { batch, resolution: train.resolution as usize };
    let mut loaded = rank.load_model(Some(training), train.rescale_betas_zero_snr).await?;
    let model = loaded.info.clone();
    check_resolution(train, &model)?;
    let layers = context.engine.adaptable_layers().await.map_err(Error::of_engine)?;
    let adapters = adapters(job, &layers)?;
    let opening = OpenAdapters {
        adapters: adapters.clone(),
        seed: train.seed,
        buckets: BucketSizes::default(),
        average: job.denoiser.use_ema,
        dropout: job.lora.dropout,
        rank_dropout: job.lora.rank_dropout,
    };
    let parameters = context.engine.open_adapters(opening).await.map_err(Error::of_engine)?;
    let numbers: usize = parameters.list.iter().map(|parameter| parameter.elements()).sum();
    journal.info(format!("LoRA: {} adapters, {numbers} parameters", adapters.len())).await;
    if checkpoint.is_none() && !job.lora.initializer_lora.is_empty() {
        start_from(rank, job, model.text_width, &layers, &adapters).await?;
    }
    // 3. Words.
    let (owned, info, folder) = (job.clone(), model.clone(), loaded.tokenizer.clone());
    let captions = fetched.pictures.first().map(captions).unwrap_or_default();
    let reading = move || words(&owned, &info, &folder, captions);
    let (prompts, previews) = ringtune_shared::tasks::spawn_blocking(reading).await??;
    // 4. Which posteriors are known.
    let making = Making {
        train,
        denoiser: Some(&job.denoiser),
        has_class,
        fetched,
        prompts,
        computes,
        begins: checkpoint.is_none(),
    };
    let (model_hash, material) = Box::pin(material(rank, &mut loaded, making)).await?;
    // 5. Where it begins or goes on.
    let Start { done, state, origin } =
        Start::of(checkpoint, model_hash, named(&job.data), data_hash, assignment)?;
    let course = Course::new(assignment, done, train.checkpointing_steps, train.report_to);
    let prepared = Prepared {
        model: (),
        parameters,
        options: options(job, assignment.spec.state_interval()),
        course: Course { save_steps: train.save_steps, ..course },
        origin,
        state,
        held: vec![Arc::clone(&loaded.local)],
    };
    let of = |adapter: Adapter| {
        let layer = layers.iter().find(|layer| layer.name == adapter.layer).cloned();
        layer.map(|layer| (adapter, layer))
    };
    let adapters = adapters.into_iter().filter_map(of).collect();
    let layers = layers.iter().map(|layer| layer.name.clone()).collect();
    Ok(Ready { material, model, adapters, layers, tokenizer: loaded.tokenizer, prepared, previews })
}

/// Puts the LoRA that the job goes on from in the place of what was drawn.
async fn start_from(
    rank: &Rank,
    job: &LoraSpec,
    text_width: usize,
    layers: &[AdaptableLayer],
    adapters: &[Adapter],
) -> Result<(), Error> {
    let place = &job.lora.initializer_lora;
    let bytes = file_bytes(place, initializer::FIELD, LARGEST_OF_A_JOB, &rank.context).await?;
    let (model, adapters) = (model_layers(text_width, layers), adapters.to_vec());
    let (engine, has_average) = (rank.context.engine.clone(), job.denoiser.use_ema);
    let start = move || {
        let values = initializer::values(&bytes, &model, &adapters)?;
        initializer::write(&engine, values, has_average).map_err(Error::of_engine)
    };
    ringtune_shared::tasks::spawn_blocking(start).await?
}

/// The prompts of the pictures, behind them those of the class, and what pictures are drawn from while training goes on. Blocks.
///
/// # Errors
/// A picture without a caption; a tokenizer that is not the text encoder's.
fn words(
    job: &LoraSpec,
    model: &ModelInfo,
    folder: &Path,
    captions: Vec<Caption>,
) -> Result<(Vec<Prompts>, Option<PreviewPlan>), Error> {
    let tokenizer = Arc::new(open_tokenizer(folder, model)?);
    let options =
        CaptionOptions { shuffle_tags: job.train.shuffle_tags, keep_tags: job.train.keep_tags as usize };
    let templates = job.templates();
    let prompts = if templates.is_empty() {
        Prompts::of_all(&tokenizer, &job.prompt.instance_prompt)
    } else {
        let words =
            ConceptWords { tokenizer: &tokenizer, placeholders: &Placeholders::default(), others: &[] };
        Prompts::encode(&words, &templates)
            .and_then(|prompts| prompts.with_captions(&words, captions, options))
    };
    let prompts = prompts.map_err(|error| inputs::Error::from(error).in_field(named(&job.data).key))?;
    let mut all = vec![prompts];
    if !job.prompt.class_images.is_empty() {
        let class = Prompts::of_all(&tokenizer, &job.prompt.class_prompt);
        all.push(class.map_err(|error| inputs::Error::from(error).in_field("data.class_prompt"))?);
    }
    let previews = previews_of(&job.train.previews.validation_prompt, &job.train, model, &tokenizer)?;
    Ok((all, previews))
}

/// Everything that decides the learned bits and nothing that does not: where model and pictures lie is replaced by what they
/// are.
fn facts(assignment: &Assignment, spec: &LoraSpec, origin: &Origin) -> Result<Value, Error> {
    let (data, initializer) = (deciding_data(&spec.data, &spec.prompt), &spec.lora.initializer_lora);
    let spec = &assignment.spec;
    let mut job = deciding_job(assignment, &["model", "data", "debug"], "train", &OPTIONS_WITHOUT_EFFECT)?;
    if let Some(prediction) = spec.common.model.prediction_type {
        job.insert("model".to_owned(), json!({ "prediction_type": prediction.as_str() }));
    }
    if let Some(data) = data {
        job.insert("data".to_owned(), data);
    }
    if let (Some(lora), Ok(FilePlace::Uploaded { hash, .. })) =
        (job.get_mut("lora"), FilePlace::parse(initializer))
    {
        lora["initializer_lora"] = json!(hash.to_string());
    }
    Ok(json!({
        "base_model": base_model_name(&spec.common.model.base),
        "data_hash": origin.data_hash.to_string(),
        "job": job,
        "model_hash": origin.model_hash.to_string(),
        "numerics_class": origin.provenance,
        "version": assignment.version,
    }))
}
