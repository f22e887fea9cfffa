//! GPT-2 finetuning: all parameters of a language model are learned from files of tokens. How their gradients are added up, and how
//! they move, is [`crate::parameters`]'s; a GPT-2 is a [`Model`](crate::parameters::Model) over it.
//!
//! Each rank works out by itself which rows of the token table a step looks up, from all ranks' windows, one step ahead (`ahead`).
//!
//! Invariant: the buckets of a step, the rows that it looks up, and its windows follow from the job and the step, never from the ring.

mod ahead;
mod batches;
pub(super) mod bench;
mod model;
mod prepare;
pub(super) mod rehearsal;
mod results;
mod schedule;
mod shape;
mod tokenizer;
mod tokens;

use ringtune_shared::job::kinds::gpt2_finetune::Gpt2Spec;

use crate::{
    parameters::ParameterTrainee,
    rank::{Error, Rank, Task},
    training::Training,
};
use model::Gpt2Model;

/// The task of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Gpt2Finetune {
    /// What is asked for.
    pub(crate) job: Gpt2Spec,
}

impl Task for Gpt2Finetune {
    type Work = Training<ParameterTrainee<Gpt2Model>>;

    async fn prepare(self, rank: &Rank) -> Result<Training<ParameterTrainee<Gpt2Model>>, Error> {
        Training::new(prepare::prepare(rank, self.job).await?).await
    }
}
