//! A UNet's preparation without a job: the same checks and the same first microbatches, on this machine alone.

use ringtune_shared::job::{JobSpec, kinds::unet_finetune::UnetFinetuneSpec};

use super::prepare::ready;
use crate::{
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
    let templates = job.templates();
    let prepare = async |rank: &_| ready(rank, job, &templates, with.compute).await;
    let done = alone(spec, with, context, prepare).await?;
    rehearse_network(spec, &job.train, &[], with, context, done).await
}
