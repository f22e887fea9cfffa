//! GPT-2 finetuning: all parameters of a language model are learned from files of tokens.
//!
//! A rank runs the engine's backward pass and the ring side by side. Buckets that the engine returns are added up by
//! the tree over all microbatches (`ringtune_shared::ring::tree`), and after the rank's last microbatch each goes
//! around the ring at once (`StepSums::add_last`), in the plan's order on all ranks. Then the losses are gathered, and
//! one task, which nobody can drop, copies the best parameters if they are about to be lost, moves the parameters and
//! counts the step. The owner of that task waits before it until nobody reads the state any more.
//!
//! Each rank works out by itself which rows of the token table a step looks up, from all ranks' windows, one step
//! ahead.
//!
//! With a sharded optimizer there are decisions (who has which shard, and what a rank that enters a ring needs of whom)
//! and exchanges: squares before the update, parameters after it, all moments for a checkpoint. A sum that ends on two
//! ranks, and the rest of its way, are the ring's (`ringtune_shared::ring::spread`).
//!
//! # Invariants
//!
//! - The buckets of a step, the rows that it looks up, and its windows follow from the job and the step, never from the
//!   ring.
//! - With a sharded optimizer a rank's state, as others see and hash it, has no moments; a checkpoint's has all of
//!   them.

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
