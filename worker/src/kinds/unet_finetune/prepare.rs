//! All that a rank does alone before it is ready.

use ringtune_shared::job::kinds::unet_finetune::{
    AttentionChoice, Offload, UnetFinetuneSpec, UnetInit, options_without_effect,
};
use serde_json::Value;

use super::{
    memory::{Machine, too_large},
    results::Results,
    trainable::trainable,
};
use crate::{
    base_model::options_of,
    engine::{Attention, BucketSizes, EngineError, FirstValues, OpenUnet, ParametersInfo, UnetTensor},
    kinds::pictures::{
        Begun, Captioned, NetworkModel, Ready, Tracing, above_zero, adamw, begin, deciding_data,
        network_facts, without_places,
    },
    node,
    parameters::{Options, ParameterTrainee, Rounds},
    rank::{Error, Rank},
    training::deciding_job,
};

/// Prepares a rank. Every failure names the job's field or the file.
pub(super) async fn prepare(
    rank: &Rank,
    job: UnetFinetuneSpec,
) -> Result<ParameterTrainee<NetworkModel<Results>>, Error> {
    let tracing = Tracing::of(rank)?;
    let templates = job.templates();
    let ready = ready(rank, &job, &templates, (true, rank.assignment.ring.members.len() as u32)).await?;
    let folder = tracing.create(rank, 1).await?;
    let assignment = &rank.assignment;
    let mut deciding =
        deciding_job(assignment, &["model", "data", "debug"], "train", &options_without_effect())?;
    without_places(&mut deciding, &assignment.spec, deciding_data(&job.data, &job.prompt));
    let facts = network_facts(assignment, Value::Object(deciding), &ready.prepared.origin);
    let results = Results::new(&job, &ready, facts);
    ready.into_trainee(rank, parts(&job, &templates), [None; 2], results, (folder, Vec::new())).await
}

/// Everything but what the steps take it with; the engine's weights are laid out too where the rank `computes`. `ranks`: of the
/// ring.
pub(super) async fn ready(
    rank: &Rank,
    job: &UnetFinetuneSpec,
    templates: &[String],
    (computes, ranks): (bool, u32),
) -> Result<Ready, Error> {
    let memory = ringtune_shared::tasks::spawn_blocking(node::memory_of_process).await?;
    let cluster = &rank.assignment.spec.common.cluster;
    let machine = Machine { cluster, ranks, precision: rank.assignment.precision, memory };
    let fits = |tensors: &[UnetTensor]| match too_large(job, tensors, machine) {
        Ok(Some(too_large)) => Err(EngineError::OfNode(too_large.into())),
        // What names no parameter is told when they are opened.
        Ok(None) | Err(_) => Ok(()),
    };
    let begun = begin(rank, Captioned { fits: Some(&fits), ..parts(job, templates) }).await?;
    let parameters = open(rank, job, &begun).await?;
    let options = options(job, rank.assignment.spec.state_interval());
    begun.finish(rank, parts(job, templates), computes, parameters, options).await
}

/// Opens what is trained of the loaded model.
async fn open(rank: &Rank, job: &UnetFinetuneSpec, begun: &Begun) -> Result<ParametersInfo, Error> {
    let engine = &rank.context.engine;
    let (folder, options) = (begun.folder(), options_of(&rank.assignment.spec));
    let tensors = engine.unet_tensors(folder, options).await.map_err(Error::of_engine)?;
    let trained = trainable(&job.unet.trainable, &tensors)?;
    let opening = OpenUnet {
        trained,
        first: match job.unet.init_from {
            UnetInit::Checkpoint => FirstValues::Stored,
            UnetInit::Scratch => FirstValues::Drawn { seed: job.train.seed },
        },
        buckets: BucketSizes::default(),
        average: job.denoiser.use_ema,
        rounds: job.unet.local_steps.is_some(),
        checkpointing: job.unet.gradient_checkpointing,
        attention: match job.unet.attention {
            AttentionChoice::Fused => Attention::Fused,
            AttentionChoice::Plain => Attention::Plain,
            AttentionChoice::Sliced => Attention::Sliced,
        },
        folder: (job.unet.offload == Offload::Disk).then(|| rank.folder.clone()),
    };
    let parameters = engine.open_unet(opening).await.map_err(Error::of_engine)?;
    let millions = |count: usize| count as f64 / 1e6;
    let own: usize = parameters.list.iter().map(|parameter| parameter.elements()).sum();
    let all: usize = tensors.iter().map(UnetTensor::elements).sum();
    let said = format!("UNet: {:.2} of {:.2} million parameters are trained", millions(own), millions(all));
    rank.journal.info(said).await;
    Ok(parameters)
}

/// What of it all kinds have that learn from captions.
fn parts<'a>(job: &'a UnetFinetuneSpec, templates: &'a [String]) -> Captioned<'a> {
    let UnetFinetuneSpec { data, prompt, train, denoiser, .. } = job;
    Captioned { data, prompt, train, denoiser, concepts: &[], templates, fits: None }
}

/// How the job's parameters are trained. `compare_interval`: see [`Options`].
fn options(job: &UnetFinetuneSpec, compare_interval: u64) -> Options {
    let train = &job.train;
    Options {
        exchange: job.unet.exchange.into(),
        rounds: job.unet.local_steps.map(|local_steps| Rounds {
            local_steps: local_steps.into(),
            learning_rate: job.unet.outer_learning_rate.unwrap_or_default(),
            momentum: job.unet.outer_momentum.unwrap_or_default(),
        }),
        shard_optimizer: job.unet.shard_optimizer,
        adamw: adamw(train),
        max_grad_norm: above_zero(train.max_grad_norm),
        compare_interval,
        early_stop_patience: train.validation.early_stop_patience,
        select_best: train.validation.select_best,
    }
}
