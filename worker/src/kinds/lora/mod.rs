//! LoRA: small matrices beside the layers of the UNet are learned; everything else stays as it is (Hu et al. 2021).

mod adapters;
mod initializer;
mod prepare;
pub(super) mod rehearsal;
mod results;

use ringtune_shared::job::kinds::lora::LoraSpec;

use crate::{
    kinds::pictures::NetworkModel,
    parameters::ParameterTrainee,
    rank::{Error, Rank, Task},
    training::Training,
};
use results::Results;

/// The task of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Lora {
    /// What is asked for.
    pub(crate) job: LoraSpec,
}

impl Task for Lora {
    type Work = Training<ParameterTrainee<NetworkModel<Results>>>;

    async fn prepare(self, rank: &Rank) -> Result<Training<ParameterTrainee<NetworkModel<Results>>>, Error> {
        Training::new(prepare::prepare(rank, self.job).await?).await
    }
}
