//! Chooses the tokens of a step's samples; pure.

use ringtune_random::{Stream, StreamName};

use crate::{Error, TokenFile};

/// The purpose of these draws: no other draw of a job has it (`worker/src/train/draws.rs` has 1 to 15 and 20).
const PURPOSE: u8 = 16;

/// Windows of `block` tokens in a file, each with the token that follows it.
///
/// As nanoGPT's `get_batch` takes them: inputs are the tokens from a start on, targets those one further, and a start is any
/// place from 0 to before `tokens - block`, all equally likely. There it is what the generator of the moment gives; here it
/// follows from (seed, step, sample), so that any worker can take any sample at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    seed: u64,
    block: u64,
    starts: u64,
}

impl Windows {
    /// Of a file. `block`: tokens of a sample, at least 1.
    ///
    /// # Errors
    /// The file has no room for one, or `block` is 0.
    pub fn new(file: &TokenFile, block: u64, seed: u64) -> Result<Self, Error> {
        if block == 0 {
            return Err(Error::option("block", "is 0; allowed: 1 or more"));
        }
        file.check_block(block)?;
        Ok(Self { seed, block, starts: file.tokens() - block })
    }

    /// Begin of sample `sample` of step `step` (below 2^56): below the file's tokens less a block.
    pub fn start(&self, step: u64, sample: u32) -> u64 {
        Stream::new(StreamName { seed: self.seed, purpose: PURPOSE, step, sample }).below(self.starts)
    }

    /// The tokens of a sample of that file and the one that follows them, [block + 1]: all but the last are the inputs, all but
    /// the first the targets.
    ///
    /// # Errors
    /// It is another file, with fewer tokens.
    pub fn sample(&self, file: &TokenFile, step: u64, sample: u32) -> Result<Vec<u16>, Error> {
        let mut tokens = vec![0; self.block as usize + 1];
        file.read(self.start(step, sample), &mut tokens)?;
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(tokens: u16) -> (tempfile::TempDir, TokenFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.bin");
        std::fs::write(&path, (0..tokens).flat_map(u16::to_le_bytes).collect::<Vec<u8>>()).unwrap();
        let file = TokenFile::open(&path).unwrap();
        (folder, file)
    }

    /// These numbers never change: a training of an older version has to come out the same. They were made by another
    /// implementation (in Python) of the layout of `ringtune_random`.
    #[test]
    fn frozen_starts() {
        let (_folder, file) = file(1000);
        let windows = Windows::new(&file, 8, 0x0123_4567_89ab_cdef).unwrap();
        let starts = |step: u64| [0, 1, 2, 3].map(|sample| windows.start(step, sample));
        assert_eq!(starts(1), [563, 334, 826, 316]);
        assert_eq!(starts(1 << 40), [76, 207, 322, 553]);
    }

    #[test]
    fn a_sample_is_a_window_and_the_token_behind_it() {
        let (_folder, file) = file(9);
        // The only start that there is.
        let windows = Windows::new(&file, 8, 1).unwrap();
        assert_eq!(windows.sample(&file, 5, 6).unwrap(), (0..9).collect::<Vec<u16>>());
        assert!(Windows::new(&file, 9, 1).unwrap_err().to_string().contains("a block of 9"));
        assert!(Windows::new(&file, 0, 1).is_err());
    }

    #[test]
    fn every_start_is_as_likely_as_any_other() {
        let (_folder, file) = file(20);
        let windows = Windows::new(&file, 4, 3).unwrap();
        let mut counts = [0u32; 16];
        for step in 0..1000 {
            (0..16).for_each(|sample| counts[windows.start(step, sample) as usize] += 1);
        }
        // 1,000 each on average; 5 standard deviations are 153.
        assert!(counts.iter().all(|count| count.abs_diff(1000) < 153), "{counts:?}");
    }
}
