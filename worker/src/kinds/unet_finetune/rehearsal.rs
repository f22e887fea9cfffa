//! A UNet's preparation without a job: the same checks and the same first microbatches, on this machine alone.

use ringtune_shared::job::{JobSpec, kinds::unet_finetune::UnetFinetuneSpec};

use super::{
    memory::{Machine, needed},
    prepare::ready,
};
use crate::{
    base_model::options_of,
    kinds::{
        pictures::rehearse_network,
        rehearsal::{As, Found, alone},
    },
    rank::{Context, Error},
};

/// Prepares the job as the only rank of a ring would, and takes the first microbatches.
///
/// # Errors
/// What would end the job: see [`Error`].
pub(in crate::kinds) async fn rehearse(
    spec: &JobSpec,
    job: &UnetFinetuneSpec,
    with: As,
    context: &Context,
) -> Result<Found, Error> {
    let (templates, cluster) = (job.templates(), &spec.common.cluster);
    let prepare = async |rank: &_| ready(rank, job, &templates, (with.compute, cluster.world_size)).await;
    let done = alone(spec, with, context, prepare).await?;
    let folder = done.prepared.base_model.folder.clone();
    let tensors = context.engine.unet_tensors(folder, options_of(spec)).await.map_err(Error::of_engine)?;
    let mut found = rehearse_network(spec, &job.train, &[], with, context, done).await?;
    if let Some(estimate) = &mut found.estimate {
        // The first microbatches touch neither moments nor average, which later steps do.
        let machine = Machine { cluster, ranks: cluster.world_size, precision: with.precision, memory: 0 };
        estimate.private_bytes = needed(job, &tensors, machine)?;
    }
    Ok(found)
}
