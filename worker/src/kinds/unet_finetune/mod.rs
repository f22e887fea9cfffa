//! UNet finetuning: the weights of a model's UNet themselves are trained; text encoder and VAE stay as they are.

pub(super) mod forecast;
mod memory;
mod prepare;
pub(super) mod rehearsal;
mod results;
mod trainable;

use ringtune_shared::job::kinds::unet_finetune::UnetFinetuneSpec;

use crate::{
    kinds::pictures::NetworkModel,
    parameters::ParameterTrainee,
    rank::{Error, Rank, Task},
    training::Training,
};
use results::Results;

/// The task of a rank.
#[derive(Clone, Debug)]
pub(crate) struct UnetFinetune {
    /// What is asked for.
    pub(crate) job: UnetFinetuneSpec,
}

impl Task for UnetFinetune {
    type Work = Training<ParameterTrainee<NetworkModel<Results>>>;

    async fn prepare(self, rank: &Rank) -> Result<Self::Work, Error> {
        Training::new(prepare::prepare(rank, self.job).await?).await
    }
}
