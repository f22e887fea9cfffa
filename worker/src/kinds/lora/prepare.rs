//! All that a rank does alone before it is ready.

use ringtune_shared::{
    job::FilePlace,
    job::kinds::lora::{LoraSpec, OPTIONS_WITHOUT_EFFECT},
    lora::LARGEST_OF_A_JOB,
};
use serde_json::{Map, Value, json};

use super::{
    adapters::adapters,
    initializer,
    results::{LearnedWords, Results},
};
use crate::{
    engine::{AdaptableLayer, Adapter, BucketSizes, OpenAdapters},
    inputs::file_bytes,
    kinds::pictures::{
        Begun, Captioned, NetworkModel, Ready, Tracing, above_zero, adamw, begin, deciding_data,
        embedding_facts, network_facts, taught, without_places,
    },
    lora_layers::model_layers,
    output::Concept,
    parameters::{Exchange, Options, ParameterTrainee},
    rank::{Error, Rank},
    session::Assignment,
    training::deciding_job,
};

/// Prepares a rank. Every failure names the job's field or the file.
pub(super) async fn prepare(
    rank: &Rank,
    job: LoraSpec,
) -> Result<ParameterTrainee<NetworkModel<Results>>, Error> {
    let tracing = Tracing::of(rank)?;
    let templates = job.templates();
    let (ready, adapters, layers) = ready(rank, &job, &templates, true).await?;
    let folder = tracing.create(rank, 1).await?;
    let (assignment, origin) = (&rank.assignment, &ready.prepared.origin);
    let deciding = deciding(assignment, &job)?;
    let words = (!job.concepts.is_empty()).then(|| {
        let prediction = ready.model.prediction_type;
        let facts =
            embedding_facts(assignment, &job.train, deciding.clone(), origin, &ready.base_model, prediction);
        LearnedWords::new(Concept::list(job.concepts.iter().cloned().map(taught).collect()), facts)
    });
    let facts = network_facts(assignment, Value::Object(deciding), origin);
    let text = &job.text_encoder;
    let rates = [text.text_encoder_learning_rate, text.embedding_learning_rate];
    let results = Results::new(&assignment.spec.common.name, &job, &ready.model, adapters, facts, words);
    ready.into_trainee(rank, parts(&job, &templates), rates, results, (folder, layers)).await
}

/// Everything but what the steps take it with, the adapters with their layers, and the names of all layers that adapters can stand
/// beside; the engine's weights are laid out too where the rank `computes`.
pub(super) async fn ready(
    rank: &Rank,
    job: &LoraSpec,
    templates: &[String],
    computes: bool,
) -> Result<(Ready, Vec<(Adapter, AdaptableLayer)>, Vec<String>), Error> {
    let engine = &rank.context.engine;
    let mut begun = begin(rank, parts(job, templates)).await?;
    // The adapters, whose layers are laid out otherwise.
    let layers = engine.adaptable_layers().await.map_err(Error::of_engine)?;
    let adapters = adapters(job, &layers)?;
    let opening = OpenAdapters {
        adapters: adapters.clone(),
        seed: job.train.seed,
        buckets: BucketSizes::default(),
        average: job.denoiser.use_ema,
        shows_given: job.train.validation.select_best && begun.previews.is_wanted(),
        dropout: job.lora.dropout,
        rank_dropout: job.lora.rank_dropout,
        rows: std::mem::take(&mut begun.rows),
    };
    let parameters = engine.open_adapters(opening).await.map_err(Error::of_engine)?;
    let numbers: usize = parameters.list.iter().map(|parameter| parameter.elements()).sum();
    rank.journal.info(format!("LoRA: {} adapters, {numbers} parameters", adapters.len())).await;
    if begun.begins && !job.lora.initializer_lora.is_empty() {
        start_from(rank, job, &begun, &layers, &adapters).await?;
    }
    let options = options(job, rank.assignment.spec.state_interval());
    let ready = begun.finish(rank, parts(job, templates), computes, parameters, options).await?;
    let of = |adapter: Adapter| {
        let layer = layers.iter().find(|layer| layer.name == adapter.layer).cloned();
        layer.map(|layer| (adapter, layer))
    };
    let adapters = adapters.into_iter().filter_map(of).collect();
    Ok((ready, adapters, layers.iter().map(|layer| layer.name.clone()).collect()))
}

/// What of it all kinds have that learn from captions.
fn parts<'a>(job: &'a LoraSpec, templates: &'a [String]) -> Captioned<'a> {
    let LoraSpec { data, prompt, train, denoiser, concepts, .. } = job;
    Captioned { data, prompt, train, denoiser, concepts, templates, fits: None }
}

/// How the job's adapters are trained. `compare_interval`: see [`Options`].
fn options(job: &LoraSpec, compare_interval: u64) -> Options {
    let train = &job.train;
    Options {
        exchange: Exchange::Exact,
        rounds: None,
        shard_optimizer: false,
        adamw: adamw(train),
        max_grad_norm: above_zero(train.max_grad_norm),
        compare_interval,
        early_stop_patience: train.validation.early_stop_patience,
        select_best: train.validation.select_best,
    }
}

/// Puts the LoRA that the job goes on from in the place of what was drawn.
async fn start_from(
    rank: &Rank,
    job: &LoraSpec,
    begun: &Begun,
    layers: &[AdaptableLayer],
    adapters: &[Adapter],
) -> Result<(), Error> {
    let place = &job.lora.initializer_lora;
    let bytes = file_bytes(place, initializer::FIELD, LARGEST_OF_A_JOB, &rank.context).await?;
    let (model, adapters) = (model_layers(begun.model.text_width, layers), adapters.to_vec());
    let (engine, has_average) = (rank.context.engine.clone(), job.denoiser.use_ema);
    let start = move || {
        let values = initializer::values(&bytes, &model, &adapters)?;
        initializer::write(&engine, values, has_average).map_err(Error::of_engine)
    };
    ringtune_shared::tasks::spawn_blocking(start).await?
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
