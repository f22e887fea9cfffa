//! Which tokens a microbatch has.

use std::sync::Arc;

use ringtune_text::{TokenFile, TokenFiles, Windows};

use crate::engine::{Dropout, EmbeddingRows, TokenBatch};

/// The step of validation's draws: training's begin with 1. They are of another file, and the same every time.
const HELD_OUT: u64 = 0;

/// Makes any microbatch of any step. Cheap to clone: the files are mapped.
#[derive(Clone, Debug)]
pub(super) struct Batches {
    files: Arc<TokenFiles>,
    train: Windows,
    /// None: nothing is held out.
    held_out: Option<Windows>,
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
    /// `validates`: whether anything is taken of val.bin, which may be shorter than a window otherwise.
    ///
    /// # Errors
    /// A file has fewer tokens than a window needs.
    pub(super) fn new(
        files: TokenFiles,
        chance: Chance,
        size: BatchSize,
        validates: bool,
    ) -> Result<Self, ringtune_text::Error> {
        let seed = chance.seed;
        let block = u64::from(size.block);
        let train = Windows::new(&files.train, block, seed)?;
        let held_out = validates.then(|| Windows::new(&files.val, block, seed)).transpose()?;
        Ok(Self { files: Arc::new(files), train, held_out, size, chance })
    }

    /// Microbatch `microbatch`, of all ranks', of a step.
    ///
    /// # Errors
    /// The file is not what it was.
    pub(super) fn of_step(&self, step: u64, microbatch: u32) -> Result<TokenBatch, ringtune_text::Error> {
        let mut made = self.build(&self.train, &self.files.train, step, microbatch)?;
        let Chance { seed, dropout: rate } = self.chance;
        let first_sample = microbatch.saturating_mul(self.size.batch);
        made.dropout = (rate > 0.0).then_some(Dropout { rate, seed, step, first_sample });
        Ok(made)
    }

    /// The ids that are inputs of any of a step's microbatches, which are so many. [`Batches::of_step`] leaves it open, as it is the
    /// same for all of them.
    ///
    /// # Errors
    /// As before.
    pub(super) fn looked_up(
        &self,
        step: u64,
        microbatches: u32,
    ) -> Result<EmbeddingRows, ringtune_text::Error> {
        let mut are_inputs = vec![false; usize::from(u16::MAX) + 1];
        for sample in 0..microbatches.saturating_mul(self.size.batch) {
            let window = self.train.sample(&self.files.train, step, sample)?;
            for id in window.iter().take(self.size.block as usize) {
                are_inputs[usize::from(*id)] = true;
            }
        }
        let inputs = are_inputs.iter().enumerate().filter(|(_, is_input)| **is_input);
        Ok(EmbeddingRows::of(inputs.map(|(id, _)| id as i64)))
    }

    /// Microbatch `microbatch` of those that the validation loss is the mean of. Nothing is dropped there.
    ///
    /// # Errors
    /// As before.
    pub(super) fn held_out(&self, microbatch: u32) -> Result<TokenBatch, ringtune_text::Error> {
        let Some(windows) = &self.held_out else {
            return Err(ringtune_text::Error::option("gpt2.eval_interval", "is 0: nothing is held out"));
        };
        self.build(windows, &self.files.val, HELD_OUT, microbatch)
    }

    fn build(
        &self,
        windows: &Windows,
        file: &TokenFile,
        step: u64,
        microbatch: u32,
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use ringtune_shared::ids::ContentHash;
    use ringtune_text::{FileFacts, MANIFEST_FILE, Manifest, TOKEN_TYPE, TRAIN_FILE, VAL_FILE};

    use super::*;

    fn batches(folder: &std::path::Path) -> Batches {
        made(folder, 3000, true).unwrap()
    }

    /// Of files whose tokens are all different; `held_out`: so many of them are in val.bin.
    fn made(
        folder: &std::path::Path,
        held_out: u16,
        validates: bool,
    ) -> Result<Batches, ringtune_text::Error> {
        let facts = [(TRAIN_FILE, 3000), (VAL_FILE, held_out)].map(|(name, tokens)| {
            let bytes: Vec<u8> = (0..tokens).flat_map(u16::to_le_bytes).collect();
            fs::write(folder.join(name), &bytes).unwrap();
            FileFacts { documents: 1, tokens: tokens.into(), sha256: ContentHash::of(&bytes) }
        });
        let [train, val] = facts;
        let manifest = Manifest {
            ringtune_version: "test".to_owned(),
            token_type: TOKEN_TYPE.to_owned(),
            vocabulary_size: 3000,
            end_of_text_id: 0,
            tokenizer_sha256: ContentHash::of(b"tokenizer"),
            seed: 1,
            val_fraction: 0.5,
            skipped_documents: 0,
            train,
            val,
        };
        fs::write(folder.join(MANIFEST_FILE), manifest.to_json().unwrap()).unwrap();
        let files = TokenFiles::open(folder).unwrap();
        Batches::new(files, Chance { seed: 3, dropout: 0.0 }, BatchSize { batch: 2, block: 5 }, validates)
    }

    #[test]
    fn who_holds_nothing_out_needs_no_block_of_it() {
        let folder = tempfile::tempdir().unwrap();
        for tokens in [1, 3] {
            assert!(made(folder.path(), tokens, true).is_err(), "{tokens} are no block");
            let batches = made(folder.path(), tokens, false).unwrap();
            assert!(batches.of_step(1, 0).is_ok());
            assert!(batches.held_out(0).unwrap_err().to_string().contains("eval_interval"));
        }
    }

    #[test]
    fn what_a_step_looks_up_is_what_its_microbatches_have_as_inputs() {
        let folder = tempfile::tempdir().unwrap();
        let batches = batches(folder.path());
        for (step, microbatches) in [(1, 1), (1, 4), (9, 4)] {
            let all: Vec<TokenBatch> =
                (0..microbatches).map(|microbatch| batches.of_step(step, microbatch).unwrap()).collect();
            let inputs: BTreeSet<i64> = all.iter().flat_map(|batch| batch.inputs.clone()).collect();
            let looked_up = batches.looked_up(step, microbatches).unwrap();
            assert_eq!(looked_up.ids(), inputs.iter().copied().collect::<Vec<_>>());
            // The token behind a window is a target alone.
            assert!(all.iter().any(|batch| batch.targets.iter().any(|id| looked_up.place_of(*id).is_none())));
        }
        assert_ne!(batches.looked_up(1, 4).unwrap(), batches.looked_up(2, 4).unwrap());
    }
}
