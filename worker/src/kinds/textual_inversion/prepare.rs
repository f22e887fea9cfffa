//! Everything that a rank does alone before step 1: pictures, base model, tokens, and which posteriors are known.

use std::{path::PathBuf, sync::Arc};

use ringtune_shared::job::{
    kinds::textual_inversion::TextualInversionSpec,
    pictures::{TrainSpec, concepts::ConceptSpec},
};
use ringtune_sources::LocalModel;

use crate::{
    engine::{ModelInfo, PredictionType, TrainingSize},
    inputs::PictureFolder,
    kinds::pictures::{
        Making, Material, above_zero, adamw, captions, check_resolution, fetch, fetch_initializers,
        first_rows, material, named, read_words, schedule, taught, wanted_concepts, wanted_source,
    },
    output::Concept,
    rank::{Error, Rank},
    train::{LrSchedule, TrainState},
    training::{self, Origin, PreviewPlan, Start},
};

/// What the steps start from.
#[derive(Debug)]
pub(super) struct Prepared {
    /// What is known of the pictures.
    pub(super) material: Material,
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
    pub(super) previews: PreviewPlan,
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
    let others =
        async { Ok::<_, Error>((training::fetch(rank).await?, fetch_initializers(spec, context).await?)) };
    let fetching = fetch(rank, others, &job.data, wanted_pictures(job));
    let ((checkpoint, embeddings), fetched) = Box::pin(fetching).await?;
    let data_hash = fetched.hash;
    let count: usize = fetched.pictures.iter().map(|pictures| pictures.files.len()).sum();
    journal.info(format!("data: {count} pictures, {data_hash}")).await;
    // 2. The base model; its hash is taken beside.
    let training =
        TrainingSize { batch: train.train_batch_size as usize, resolution: train.resolution as usize };
    let mut loaded = rank.load_model(Some(training), train.rescale_betas_zero_snr, None).await?;
    let model = loaded.info.clone();
    check_resolution(train, &model)?;
    // 3. Words.
    let (owned, info, words_folder) = (job.clone(), model.clone(), loaded.tokenizer.clone());
    let captions = fetched.pictures.iter().map(captions).collect();
    let reading = move || {
        let field = |index: usize, key: &str| owned.concept_field(index, key);
        read_words(&owned.concepts(), field, &owned.train, &info, &words_folder, captions)
    };
    let (words, previews) = ringtune_shared::tasks::spawn_blocking(reading).await??;
    if assignment.is_first() && previews.is_wanted() && !previews.shows_learned(&model) {
        let prompt = &train.previews.validation_prompt;
        journal.warn(format!("train.validation_prompt: {prompt:?} has no word that is learned")).await;
    }
    let rows = first_rows(&words, embeddings, model.text_width, &context.engine).await?;
    // 4. Which posteriors are known.
    let schedule = schedule(spec, train, None)?;
    let prompts = words.into_iter().map(|word| word.prompts).collect();
    let making = Making {
        train,
        denoiser: None,
        has_class: false,
        fetched,
        prompts,
        computes,
        begins: checkpoint.is_none(),
    };
    let (model_hash, material) = Box::pin(material(rank, &mut loaded, making)).await?;
    // 5. Where training starts or goes on.
    let Start { done, state, origin } =
        Start::of(checkpoint, model_hash, named(&job.data), data_hash, assignment)?;
    let mut rows_and_optimizer = fresh(train, rows);
    if let Some(state) = state {
        let mut state = training::read(state, assignment).await?;
        rows_and_optimizer = rows_and_optimizer.restored(&mut state)?;
        state.finish()?;
    }
    Ok(Prepared {
        material,
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

/// Before the first step.
fn fresh(train: &TrainSpec, rows: Vec<f32>) -> TrainState {
    TrainState::new(rows, adamw(train))
        .with_max_grad_norm(above_zero(train.max_grad_norm))
        .with_patience(train.validation.early_stop_patience)
}

/// The folders of each concept, or the job's source.
fn wanted_pictures(job: &TextualInversionSpec) -> Vec<Vec<PictureFolder>> {
    let concepts = job.concepts();
    let captions = concepts.iter().any(ConceptSpec::uses_captions);
    match wanted_source(&job.data, captions) {
        Some(source) => vec![vec![source]],
        None => wanted_concepts(concepts, |index, key| job.concept_field(index, key)),
    }
}
