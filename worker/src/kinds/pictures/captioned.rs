//! What a rank does alone before step 1, of kinds that learn from pictures with captions: everything but opening what is trained.

use std::{path::Path, path::PathBuf, sync::Arc};

use ringtune_shared::checkpoint::OpenCheckpoint;
use ringtune_shared::job::pictures::{
    DataSpec, DenoiserSpec, PromptSpec, TrainSpec,
    concepts::{ConceptSpec, field},
};
use ringtune_sources::LocalModel;
use serde_json::{Value, json};

use super::{
    ConceptWords, Making, Material, Samples, captions, check_resolution, fetch, fetch_initializers,
    first_rows, material, named,
    network::{NetworkModel, NetworkResults, Trace},
    open_tokenizer,
    prepare::{Fetched, check_timesteps, schedules, wanted_samples},
    previews_of, read_words, wanted, wanted_class, wanted_concepts, wanted_source,
};
use crate::{
    base_model::{self, Loaded, base_model_name},
    data::{
        DrawnSamples, Placeholders, Prompts,
        caption_words::CaptionOptions,
        prompts::{self, Caption},
    },
    engine::{ModelInfo, ParametersInfo, TrainingSize},
    inputs,
    output::TraceFolder,
    parameters::{Options, ParameterTrainee, Prepared},
    rank::{Error, Rank},
    session::Assignment,
    training::{self, Course, Origin, PreviewPlan, Start},
};

/// The parts of such a job.
#[derive(Clone, Copy)]
pub(in crate::kinds) struct Captioned<'a> {
    pub(in crate::kinds) data: &'a DataSpec,
    pub(in crate::kinds) prompt: &'a PromptSpec,
    pub(in crate::kinds) train: &'a TrainSpec,
    pub(in crate::kinds) denoiser: &'a DenoiserSpec,
    /// Words that are learned beside; empty: none.
    pub(in crate::kinds) concepts: &'a [ConceptSpec],
    /// The prompts that captions stand in; none: all pictures have the same prompt.
    pub(in crate::kinds) templates: &'a [String],
    /// See [`base_model::Fits`].
    pub(in crate::kinds) fits: Option<base_model::Fits<'a>>,
}

/// A rank that has its model, and knows its words.
pub(in crate::kinds) struct Begun {
    pub(in crate::kinds) model: ModelInfo,
    pub(in crate::kinds) previews: PreviewPlan,
    /// What rows of words are that are learned beside.
    pub(in crate::kinds) rows: Vec<f32>,
    /// It begins at step 1.
    pub(in crate::kinds) begins: bool,
    loaded: Loaded,
    fetched: Fetched,
    prompts: Vec<Prompts>,
    checkpoint: Option<OpenCheckpoint>,
    has_class: bool,
}

/// What a rank knows and has before its first step.
pub(in crate::kinds) struct Ready {
    pub(in crate::kinds) material: Material,
    pub(in crate::kinds) model: ModelInfo,
    /// The base model's tokenizer's folder.
    pub(in crate::kinds) tokenizer: PathBuf,
    pub(in crate::kinds) prepared: Prepared<()>,
    pub(in crate::kinds) base_model: Arc<LocalModel>,
    pub(in crate::kinds) previews: PreviewPlan,
}

/// Fetches all that the job needs, loads the model and reads the words.
///
/// # Errors
/// Every failure names the job's field or the file.
pub(in crate::kinds) async fn begin(rank: &Rank, job: Captioned<'_>) -> Result<Begun, Error> {
    let Rank { assignment, context, journal, .. } = rank;
    let Captioned { data, prompt, train, denoiser, concepts, templates, fits } = job;
    // 1. Where it goes on, so that a wrong file is told before anything long is begun; and the pictures.
    let learned = if concepts.is_empty() {
        let has_captions = !templates.is_empty();
        let folders = data.folders().into_iter();
        let folders = folders.map(|(key, folder)| wanted(format!("data.{key}"), folder, has_captions));
        let others = wanted_source(data, has_captions).into_iter().chain(wanted_samples(prompt, train.seed));
        vec![folders.chain(others).collect()]
    } else {
        wanted_concepts(concepts.to_vec(), field)
    };
    let (groups, class) = (learned.len(), wanted_class(prompt));
    let has_class = class.is_some();
    let wanted = learned.into_iter().chain(class.map(|folder| vec![folder])).collect();
    let others =
        async { Ok((training::fetch(rank).await?, fetch_initializers(&assignment.spec, context).await?)) };
    let fetching = Box::pin(fetch(rank, others, data, wanted));
    let ((checkpoint, starts), mut fetched) = fetching.await?;
    let count: usize = fetched.pictures.iter().take(groups).map(|pictures| pictures.files.len()).sum();
    let mut said = format!("data: {count} pictures");
    if let Some(class) = fetched.pictures.get_mut(groups) {
        class.keep_first(denoiser.num_class_images as usize);
        said += &format!(" and {} of the class", class.files.len());
    }
    journal.info(format!("{said}, {}", fetched.hash)).await;
    // 2. The base model; its hash is taken beside.
    // Those of the class stand behind the others.
    let batch = train.train_batch_size as usize * (1 + usize::from(has_class));
    let training = TrainingSize { batch, resolution: train.resolution as usize };
    let loaded = rank.load_model(Some(training), train.rescale_betas_zero_snr, fits).await?;
    let model = loaded.info.clone();
    check_resolution(train, &model)?;
    check_timesteps(denoiser, &model)?;
    // 3. Words, and the rows of those that are learned.
    let reading = Reading {
        prompt: prompt.clone(),
        data: data.clone(),
        train: train.clone(),
        concepts: concepts.to_vec(),
        templates: templates.to_vec(),
    };
    let (info, folder) = (model.clone(), loaded.tokenizer.clone());
    let captions = fetched.pictures.iter().take(groups).map(captions).collect();
    let read = move || reading.words(&info, &folder, captions);
    let Words { prompts, learned, previews } = ringtune_shared::tasks::spawn_blocking(read).await??;
    let rows = first_rows(&learned, starts, model.text_width, &context.engine).await?;
    let prompts = learned.into_iter().map(|word| word.prompts).chain(prompts).collect();
    let begins = checkpoint.is_none();
    Ok(Begun { model, previews, rows, begins, loaded, fetched, prompts, checkpoint, has_class })
}

impl Begun {
    /// The base model's.
    pub(in crate::kinds) fn folder(&self) -> PathBuf {
        self.loaded.local.folder.clone()
    }

    /// The rest, when what is trained is open. The engine's weights are laid out too where the rank `computes`.
    ///
    /// # Errors
    /// A picture, its mask or the model cannot be read; a checkpoint of another job; the engine's.
    pub(in crate::kinds) async fn finish(
        self,
        rank: &Rank,
        job: Captioned<'_>,
        computes: bool,
        parameters: ParametersInfo,
        options: Options,
    ) -> Result<Ready, Error> {
        let Begun { model, previews, begins, mut loaded, fetched, prompts, checkpoint, has_class, .. } = self;
        let Captioned { data, train, denoiser, .. } = job;
        let data_hash = fetched.hash;
        // 1. Which posteriors are known.
        let denoiser = Some(denoiser);
        let making = Making { train, denoiser, has_class, fetched, prompts, computes, begins };
        let (model_hash, material) = Box::pin(material(rank, &mut loaded, making)).await?;
        // 2. Where it begins or goes on.
        let assignment = &rank.assignment;
        let Start { done, state, origin } =
            Start::of(checkpoint, model_hash, named(data), data_hash, assignment)?;
        let course = Course::new(assignment, done, train.checkpointing_steps, train.report_to);
        let prepared = Prepared {
            model: (),
            parameters,
            options,
            course: Course { save_steps: train.save_steps, ..course },
            origin,
            state,
            held: vec![Arc::clone(&loaded.local)],
        };
        let (tokenizer, base_model) = (loaded.tokenizer, loaded.local);
        Ok(Ready { material, model, tokenizer, prepared, base_model, previews })
    }
}

impl Ready {
    /// What takes the steps.
    ///
    /// # Errors
    /// See [`Prepared::into_trainee`].
    pub(in crate::kinds) async fn into_trainee<R: NetworkResults>(
        self,
        rank: &Rank,
        job: Captioned<'_>,
        rates: [Option<f64>; 2],
        results: R,
        (folder, layers): (Option<TraceFolder>, Vec<String>),
    ) -> Result<ParameterTrainee<NetworkModel<R>>, Error> {
        let Ready { material, prepared, previews, .. } = self;
        let model = NetworkModel {
            samples: Samples::new(material, prepared.course.total, rank),
            schedules: schedules(&rank.assignment, job.train, rates)?,
            rates,
            previews: rank.assignment.proof.is_none().then_some(previews),
            trace: folder.map(|folder| Trace { folder, layers: Arc::new(layers) }),
            results,
            train: job.train.clone(),
            denoiser: job.denoiser.clone(),
        };
        prepared.with(model).into_trainee(rank).await
    }
}

/// What a network's files say of themselves. `job`: what of it decides bits.
pub(in crate::kinds) fn network_facts(assignment: &Assignment, job: Value, origin: &Origin) -> Value {
    json!({
        "base_model": base_model_name(&assignment.spec.common.model.base),
        "data_hash": origin.data_hash.to_string(),
        "job": job,
        "model_hash": origin.model_hash.to_string(),
        "numerics_class": origin.provenance,
        "version": assignment.version,
    })
}

/// What words are read by.
struct Reading {
    prompt: PromptSpec,
    data: DataSpec,
    train: TrainSpec,
    concepts: Vec<ConceptSpec>,
    templates: Vec<String>,
}

/// What is made of a job's words.
struct Words {
    /// Of pictures that no learned word has, and behind them of the class.
    prompts: Vec<Prompts>,
    /// Those that are learned.
    learned: Vec<ConceptWords>,
    previews: PreviewPlan,
}

impl Reading {
    /// The prompts of all pictures, and what is drawn while training goes on. Blocks. `captions`: of each group of pictures.
    ///
    /// # Errors
    /// A picture without a caption; a word that the vocabulary makes impossible; a tokenizer that is not the text encoder's.
    fn words(self, model: &ModelInfo, folder: &Path, captions: Vec<Vec<Caption>>) -> Result<Words, Error> {
        let Self { prompt, data, train, concepts, templates } = self;
        let tokenizer = Arc::new(open_tokenizer(folder, model)?);
        let of_all = |key: &str, text: &str| {
            Prompts::of_all(&tokenizer, text).map_err(|error| inputs::Error::from(error).in_field(key))
        };
        // 1. Of the class.
        let mut prompts = Vec::new();
        if !prompt.class_images.is_empty() {
            prompts.push(of_all("data.class_prompt", &prompt.class_prompt)?);
        }
        // 2. Learned words have theirs.
        if !concepts.is_empty() {
            let (learned, previews) = read_words(&concepts, field, &train, model, folder, captions)?;
            return Ok(Words { prompts, learned, previews });
        }
        // 3. Others are captions, or one for all pictures.
        let key = named(&data).key;
        let own = if let Some(count) = prompt.synthetic_samples {
            let samples = DrawnSamples { seed: train.seed, count };
            Prompts::drawn(&tokenizer, samples).map_err(inputs::Error::from)?
        } else if templates.is_empty() {
            of_all(key, &prompt.instance_prompt)?
        } else {
            let options =
                CaptionOptions { shuffle_tags: train.shuffle_tags, keep_tags: train.keep_tags as usize };
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
        let previews = previews_of(&train, model, tokenizer, Vec::new())?;
        Ok(Words { prompts, learned: Vec::new(), previews })
    }
}
