//! Textual inversion: rows of the text encoder's table are learned, everything else stays as it is.

mod facts;
mod prepare;
pub(super) mod rehearsal;
mod results;
mod trainee;

use ringtune_shared::job::kinds::textual_inversion::TextualInversionSpec;

use crate::{
    rank::{Error, Rank, Task},
    training::Training,
};
use trainee::Inverter;

/// The task of a rank.
#[derive(Clone, Debug)]
pub(crate) struct TextualInversion {
    /// What is asked for.
    pub(crate) job: TextualInversionSpec,
}

impl Task for TextualInversion {
    type Work = Training<Inverter>;

    async fn prepare(self, rank: &Rank) -> Result<Training<Inverter>, Error> {
        Training::new(Inverter::prepare(rank, self.job).await?).await
    }
}
