//! GPT-2 finetuning: all parameters of a language model are learned from files of tokens.

mod batches;
pub(super) mod bench;
mod exchange;
mod language_state;
mod looked_up;
mod memory;
mod prepare;
pub(super) mod rehearsal;
mod results;
mod schedule;
mod sharded_steps;
mod sharding;
mod shares;
mod step;
mod tensors;
mod tokenizer;
mod tokens;
mod trainee;
mod unnamed_file;

use ringtune_shared::job::kinds::gpt2_finetune::Gpt2Spec;

use crate::{
    rank::{Error, Rank, Task},
    training::Training,
};
use trainee::LanguageTrainee;

/// The task of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Gpt2Finetune {
    /// What is asked for.
    pub(crate) job: Gpt2Spec,
}

impl Task for Gpt2Finetune {
    type Work = Training<LanguageTrainee>;

    async fn prepare(self, rank: &Rank) -> Result<Training<LanguageTrainee>, Error> {
        Training::new(prepare::prepare(rank, self.job).await?).await
    }
}
