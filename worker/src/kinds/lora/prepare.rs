//! All that a rank does alone before it is ready.

use std::{path::Path, path::PathBuf, sync::Arc};

use ringtune_shared::{
    job::FilePlace,
    job::kinds::lora::{LoraSpec, OPTIONS_WITHOUT_EFFECT},
    job::pictures::concepts::field,
    lora::LARGEST_OF_A_JOB,
};
use ringtune_sources::LocalModel;
use serde_json::{Map, Value, json};

use super::{
    adapters::adapters,
    initializer,
    model::{LoraModel, Trace, options},
    results::{LearnedWords, Results},
};
use crate::{
    base_model::base_model_name,
    data::{
        Placeholders, Prompts,
        caption_words::CaptionOptions,
        prompts::{self, Caption},
    },
    engine::{AdaptableLayer, Adapter, BucketSizes, ModelInfo, OpenAdapters, TrainingSize},
    inputs::{self, file_bytes},
    kinds::pictures::{
        ConceptWords, Making, Material, Samples, Tracing, captions, check_resolution, deciding_data,
        embedding_facts, fetch, fetch_initializers, first_rows, material, named, open_tokenizer, previews_of,
        read_words, schedule, taught, wanted, wanted_class, wanted_concepts, wanted_source, without_places,
    },
    lora_layers::model_layers,
    output::Concept,
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
    base_model: Arc<LocalModel>,
    previews: Option<PreviewPlan>,
}

/// Prepares a rank. Every failure names the job's field or the file.
pub(super) async fn prepare(rank: &Rank, job: LoraSpec) -> Result<ParameterTrainee<LoraModel>, Error> {
    let tracing = Tracing::of(rank)?;
    let ready = ready(rank, &job, true).await?;
    let Ready { material, model, adapters, layers, prepared, previews, base_model, .. } = ready;
    let folder = tracing.create(rank, 1).await?;
    let proves = rank.assignment.proof.is_some();
    let (assignment, origin) = (&rank.assignment, &prepared.origin);
    let deciding = deciding(assignment, &job)?;
    let words = (!job.concepts.is_empty()).then(|| {
        let prediction = model.prediction_type;
        let facts =
            embedding_facts(assignment, &job.train, deciding.clone(), origin, &base_model, prediction);
        LearnedWords::new(Concept::list(job.concepts.iter().cloned().map(taught).collect()), facts)
    });
    let facts = facts(assignment, deciding, origin);
    let scale = job.train.learning_rate_scale(&rank.assignment.spec.common.cluster);
    let own = job.train.learning_rate;
    let text_rate = job.text_encoder.text_encoder_learning_rate.unwrap_or(own);
    let rows_rate = job.text_encoder.embedding_learning_rate.unwrap_or(own);
    let model = LoraModel {
        samples: Samples::new(material, prepared.course.total, rank),
        schedule: schedule(&job.train, own, scale)?,
        rows_schedule: schedule(&job.train, rows_rate, scale)?,
        text_schedule: schedule(&job.train, text_rate, scale)?,
        previews: previews.filter(|_| !proves),
        trace: folder.map(|folder| Trace { folder, layers: Arc::new(layers) }),
        results: Results::new(&assignment.spec.common.name, &job, &model, adapters, facts, words),
        job,
    };
    prepared.with(model).into_trainee(rank).await
}

/// Everything but what the steps take it with; the engine's weights are laid out too where the rank `computes`.
pub(super) async fn ready(rank: &Rank, job: &LoraSpec, computes: bool) -> Result<Ready, Error> {
    let Rank { assignment, context, journal, .. } = rank;
    let train = &job.train;
    // 1. Where it goes on, so that a wrong file is told before anything long is begun; and the pictures.
    let learned = if job.concepts.is_empty() {
        let has_captions = !job.templates().is_empty();
        let folders = job.data.folders().into_iter();
        let folders = folders.map(|(key, folder)| wanted(format!("data.{key}"), folder, has_captions));
        vec![folders.chain(wanted_source(&job.data, has_captions)).collect()]
    } else {
        wanted_concepts(job.concepts.clone(), field)
    };
    let (groups, class) = (learned.len(), wanted_class(&job.prompt));
    let has_class = class.is_some();
    let wanted = learned.into_iter().chain(class.map(|folder| vec![folder])).collect();
    let others =
        async { Ok((training::fetch(rank).await?, fetch_initializers(&assignment.spec, context).await?)) };
    let fetching = Box::pin(fetch(rank, others, &job.data, wanted));
    let ((checkpoint, starts), mut fetched) = fetching.await?;
    let data_hash = fetched.hash;
    let count: usize = fetched.pictures.iter().take(groups).map(|pictures| pictures.files.len()).sum();
    let mut said = format!("data: {count} pictures");
    if let Some(class) = fetched.pictures.get_mut(groups) {
        class.keep_first(job.denoiser.num_class_images as usize);
        said += &format!(" and {} of the class", class.files.len());
    }
    journal.info(format!("{said}, {data_hash}")).await;
    // 2. The base model; its hash is taken beside.
    // Those of the class stand behind the others.
    let batch = train.train_batch_size as usize * (1 + usize::from(has_class));
    let training = TrainingSize { batch, resolution: train.resolution as usize };
    let mut loaded = rank.load_model(Some(training), train.rescale_betas_zero_snr).await?;
    let model = loaded.info.clone();
    check_resolution(train, &model)?;
    // 3. Words, and the rows of those that are learned.
    let (owned, info, folder) = (job.clone(), model.clone(), loaded.tokenizer.clone());
    let captions = fetched.pictures.iter().take(groups).map(captions).collect();
    let reading = move || words(&owned, &info, &folder, captions);
    let Words { prompts, learned, previews } = ringtune_shared::tasks::spawn_blocking(reading).await??;
    let rows = first_rows(&learned, starts, model.text_width, &context.engine).await?;
    let prompts = learned.into_iter().map(|word| word.prompts).chain(prompts).collect();
    // 4. The adapters, whose layers are laid out otherwise.
    let layers = context.engine.adaptable_layers().await.map_err(Error::of_engine)?;
    let adapters = adapters(job, &layers)?;
    let opening = OpenAdapters {
        adapters: adapters.clone(),
        seed: train.seed,
        buckets: BucketSizes::default(),
        average: job.denoiser.use_ema,
        shows_given: train.validation.select_best && previews.is_some(),
        dropout: job.lora.dropout,
        rank_dropout: job.lora.rank_dropout,
        rows,
    };
    let parameters = context.engine.open_adapters(opening).await.map_err(Error::of_engine)?;
    let numbers: usize = parameters.list.iter().map(|parameter| parameter.elements()).sum();
    journal.info(format!("LoRA: {} adapters, {numbers} parameters", adapters.len())).await;
    if checkpoint.is_none() && !job.lora.initializer_lora.is_empty() {
        start_from(rank, job, model.text_width, &layers, &adapters).await?;
    }
    // 5. Which posteriors are known.
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
    // 6. Where it begins or goes on.
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
    let (tokenizer, base_model) = (loaded.tokenizer, loaded.local);
    Ok(Ready { material, model, adapters, layers, tokenizer, prepared, base_model, previews })
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

/// What is made of a job's words.
struct Words {
    /// Of pictures that no learned word has, and behind them of the class.
    prompts: Vec<Prompts>,
    /// Those that are learned.
    learned: Vec<ConceptWords>,
    previews: Option<PreviewPlan>,
}

/// The prompts of all pictures, and what is drawn while training goes on. Blocks. `captions`: of each group of pictures.
///
/// # Errors
/// A picture without a caption; a word that the vocabulary makes impossible; a tokenizer that is not the text encoder's.
fn words(
    job: &LoraSpec,
    model: &ModelInfo,
    folder: &Path,
    captions: Vec<Vec<Caption>>,
) -> Result<Words, Error> {
    let tokenizer = Arc::new(open_tokenizer(folder, model)?);
    let of_all = |key: &str, text: &str| {
        Prompts::of_all(&tokenizer, text).map_err(|error| inputs::Error::from(error).in_field(key))
    };
    // 1. Of the class.
    let mut prompts = Vec::new();
    if !job.prompt.class_images.is_empty() {
        prompts.push(of_all("data.class_prompt", &job.prompt.class_prompt)?);
    }
    // 2. Learned words have theirs.
    if !job.concepts.is_empty() {
        let (learned, previews) = read_words(&job.concepts, field, &job.train, model, folder, captions)?;
        return Ok(Words { prompts, learned, previews });
    }
    // 3. Others are captions, or one for all pictures.
    let key = named(&job.data).key;
    let templates = job.templates();
    let own = if templates.is_empty() {
        of_all(key, &job.prompt.instance_prompt)?
    } else {
        let options =
            CaptionOptions { shuffle_tags: job.train.shuffle_tags, keep_tags: job.train.keep_tags as usize };
        let words = prompts::ConceptWords {
            tokenizer: &tokenizer,
            placeholders: &Placeholders::default(),
            others: &[],
        };
        let captions = captions.into_iter().flatten().collect();
        let prompts = Prompts::encode(&words, &templates)
            .and_then(|prompts| prompts.with_captions(&words, captions, options));
        prompts.map_err(|error| inputs::Error::from(error).in_field(key))?
    };
    prompts.insert(0, own);
    let previews = previews_of(&job.train.previews.validation_prompt, &job.train, model, &tokenizer)?;
    Ok(Words { prompts, learned: Vec::new(), previews })
}

/// What of the job decides the learned bits: where model and pictures lie is replaced by what they are.
fn deciding(assignment: &Assignment, spec: &LoraSpec) -> Result<Map<String, Value>, Error> {
    let mut job = deciding_job(assignment, &["model", "data", "debug"], "train", &OPTIONS_WITHOUT_EFFECT)?;
    without_places(&mut job, &assignment.spec, deciding_data(&spec.data, &spec.prompt));
    if let (Some(lora), Ok(FilePlace::Uploaded { hash, .. })) =
        (job.get_mut("lora"), FilePlace::parse(&spec.lora.initializer_lora))
    {
        lora["initializer_lora"] = json!(hash.to_string());
    }
    Ok(job)
}

/// What the adapters' files say of themselves.
fn facts(assignment: &Assignment, job: Map<String, Value>, origin: &Origin) -> Value {
    json!({
        "base_model": base_model_name(&assignment.spec.common.model.base),
        "data_hash": origin.data_hash.to_string(),
        "job": job,
        "model_hash": origin.model_hash.to_string(),
        "numerics_class": origin.provenance,
        "version": assignment.version,
    })
}
