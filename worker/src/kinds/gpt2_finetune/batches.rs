//! Which tokens a microbatch has.

use std::sync::Arc;

use ringtune_text::{TokenFile, TokenFiles, Windows};

use crate::engine::{Dropout, TokenBatch};

/// The step of validation's draws: training's begin with 1. They are of another file, and the same every time.
const HELD_OUT: u64 = 0;

/// Makes any microbatch of any step. Cheap to clone: the files are mapped.
#[derive(Clone, Debug)]
pub(super) struct Batches {
    files: Arc<TokenFiles>,
    train: Windows,
    held_out: Windows,
    size: BatchSize,
    chance: Chance,
}

/// What microbatches depend on besides the tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chance {
    /// The job's.
    pub(super) seed: u64,
    /// The share of numbers that training drops.
    pub(super) dropout: f64,
}

/// How large a microbatch is.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchSize {
    /// Windows.
    pub(super) batch: u32,
    /// Tokens of each.
    pub(super) block: u32,
}

impl Batches {
    /// # Errors
    /// A file has fewer tokens than a window needs.
    pub(super) fn new(
        files: TokenFiles,
        chance: Chance,
        size: BatchSize,
    ) -> Result<Self, ringtune_text::Error> {
        let seed = chance.seed;
        let block = u64::from(size.block);
        let (train, held_out) =
            (Windows::new(&files.train, block, seed)?, Windows::new(&files.val, block, seed)?);
        Ok(Self { files: Arc::new(files), train, held_out, size, chance })
    }

    /// Microbatch `microbatch`, of all ranks', of a step.
    ///
    /// # Errors
    /// The file is not what it was.
    pub(super) fn of_step(&self, step: u64, microbatch: u32) -> Result<TokenBatch, ringtune_text::Error> {
        let mut made = self.build(&self.train, &self.files.train, (step, microbatch))?;
        let Chance { seed, dropout: rate } = self.chance;
        let first_sample = microbatch.saturating_mul(self.size.batch);
        made.dropout = (rate > 0.0).then_some(Dropout { rate, seed, step, first_sample });
        Ok(made)
    }

    /// Microbatch `microbatch` of those that the validation loss is the mean of. Nothing is dropped there.
    ///
    /// # Errors
    /// As before.
    pub(super) fn held_out(&self, microbatch: u32) -> Result<TokenBatch, ringtune_text::Error> {
        self.build(&self.held_out, &self.files.val, (HELD_OUT, microbatch))
    }

    fn build(
        &self,
        windows: &Windows,
        file: &TokenFile,
        (step, microbatch): (u64, u32),
    ) -> Result<TokenBatch, ringtune_text::Error> {
        let BatchSize { batch, block } = self.size;
        let mut made = TokenBatch { batch: batch as usize, block: block as usize, ..TokenBatch::default() };
        let tokens = made.batch * made.block;
        (made.inputs, made.targets) = (Vec::with_capacity(tokens), Vec::with_capacity(tokens));
        for number in 0..batch {
            // The check of the job's size keeps this far below 2^32.
            let sample = microbatch.saturating_mul(batch).saturating_add(number);
            let window = windows.sample(file, step, sample)?;
            let ids = window.iter().map(|id| i64::from(*id));
            made.inputs.extend(ids.clone().take(made.block));
            made.targets.extend(ids.skip(1));
        }
        Ok(made)
    }
}
