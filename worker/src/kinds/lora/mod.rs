//! LoRA: small matrices beside the layers of the UNet are learned; everything else stays as it is (Hu et al. 2021).

mod adapters;
mod initializer;
mod model;
mod prepare;
pub(super) mod rehearsal;
mod results;

use ringtune_shared::job::kinds::lora::LoraSpec;

use crate::{
    parameters::ParameterTrainee,
    rank::{Error, Rank, Task},
    training::Training,
};
use model::LoraModel;

/// The task of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Lora {
    /// What is asked for.
    pub(crate) job: LoraSpec,
}

impl Task for Lora {
    type Work = Training<ParameterTrainee<LoraModel>>;

    async fn prepare(self, rank: &Rank) -> Result<Training<ParameterTrainee<LoraModel>>, Error> {
        Training::new(prepare::prepare(rank, self.job).await?).await
    }
}
