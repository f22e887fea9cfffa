//! Everything that a rank does alone before step 1: pictures, base model, tokens, and which posteriors are known.

use std::{path::PathBuf, sync::Arc};

use ringtune_shared::job::{
    kinds::textual_inversion::{ConceptSpec, TextualInversionSpec},
    pictures::{FolderSpec, TrainSpec},
};
use ringtune_sources::LocalModel;

use super::{initializers, words};
use crate::{
    engine::{ModelInfo, PredictionType, TrainingSize},
    inputs::PictureFolder,
    kinds::pictures::{
        Making, Material, above_zero, adamw, captions, check_resolution, fetch, material, named, schedule,
        wanted, wanted_source,
    },
    output::{Concept, Taught},
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
    pub(super) previews: Option<PreviewPlan>,
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
        async { Ok::<_, Error>((training::fetch(rank).await?, initializers::fetch(spec, context).await?)) };
    let fetching = fetch(rank, others, &job.data, wanted_pictures(job));
    let ((checkpoint, embeddings), fetched) = Box::pin(fetching).await?;
    let data_hash = fetched.hash;
    let count: usize = fetched.pictures.iter().map(|pictures| pictures.files.len()).sum();
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
    let captions = fetched.pictures.iter().map(captions).collect();
    let (words, previews) =
        ringtune_shared::tasks::spawn_blocking(move || words::read(&owned, &info, &words_folder, captions))
            .await??;
    if assignment.is_first() && previews.as_ref().is_some_and(|plan| !plan.shows_learned(&model)) {
        let prompt = &train.previews.validation_prompt;
        journal.warn(format!("train.validation_prompt: {prompt:?} has no word that is learned")).await;
    }
    let mut rows = Vec::new();
    for (word, embedding) in words.iter().zip(starts) {
        rows.extend(embedding.unwrap_or_default());
        for initializer in &word.initializers {
            rows.extend(context.engine.token_row(*initializer).await.map_err(Error::of_engine)?);
        }
    }
    // 4. Which posteriors are known.
    let schedule = schedule(train, train.learning_rate, train.learning_rate_scale(&spec.common.cluster))?;
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
    TrainState::new(rows, adamw(train))
        .with_max_grad_norm(above_zero(train.max_grad_norm))
        .with_patience(train.validation.early_stop_patience)
}

/// The folders of each concept.
fn wanted_pictures(job: &TextualInversionSpec) -> Vec<Vec<PictureFolder>> {
    let of_concept = |(index, concept): (usize, ConceptSpec)| {
        let captions = concept.uses_captions();
        let folder =
            |(key, folder): (String, FolderSpec)| wanted(job.concept_field(index, &key), folder, captions);
        let source = wanted_source(&job.data, captions);
        if source.is_some() {
            source.into_iter().collect()
        } else {
            concept.folders().into_iter().map(folder).collect()
        }
    };
    job.concepts().into_iter().enumerate().map(of_concept).collect()
}
