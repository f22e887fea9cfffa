//! Which rows of the token table each step looks up. Every rank works it out by itself, from the windows of all ranks: nothing about
//! it travels.

use ringtune_text::Error as TextError;
use tokio::task::JoinHandle;

use super::{batches::Batches, tokens};
use crate::{engine::EmbeddingRows, rank::Error};

/// Works them out one step ahead, while this step's gradients are computed: the tokens of a large step lie all over the file.
#[derive(Debug)]
pub(super) struct Ahead {
    batches: Batches,
    /// The job's last step.
    last: u64,
    next: Option<Next>,
}

#[derive(Debug)]
struct Next {
    step: u64,
    microbatches: u32,
    looked_up: JoinHandle<Result<EmbeddingRows, TextError>>,
}

impl Ahead {
    /// `last`: the step behind which there is none.
    pub(super) fn new(batches: Batches, last: u64) -> Self {
        Self { batches, last, next: None }
    }

    /// What a step of so many microbatches, over all ranks, looks up.
    ///
    /// # Errors
    /// The file is not what it was; a task died.
    pub(super) async fn of_step(&mut self, step: u64, microbatches: u32) -> Result<EmbeddingRows, Error> {
        // Another step than the one that was to come: a ring was lost, or this is the first.
        let ready = self.next.take().filter(|next| (next.step, next.microbatches) == (step, microbatches));
        let Next { looked_up, .. } = ready.unwrap_or_else(|| self.begin(step, microbatches));
        let looked_up = looked_up.await?.map_err(tokens::unusable)?;
        self.next = (step < self.last).then(|| self.begin(step + 1, microbatches));
        Ok(looked_up)
    }

    fn begin(&self, step: u64, microbatches: u32) -> Next {
        let batches = self.batches.clone();
        let work_out = move || batches.looked_up(step, microbatches);
        Next { step, microbatches, looked_up: ringtune_shared::tasks::spawn_blocking(work_out) }
    }
}
