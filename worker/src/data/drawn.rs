//! Samples that no file has: pictures of noise, each with a prompt of random tokens. They are there to measure with.

use ringtune_random::{Stream, StreamName};
use ringtune_shared::ids::ContentHash;

use super::{ImageFile, ImagePlace, ListedImage};

/// The purpose of the draws of tokens: no other draw has it (`ringtune_random`'s stream lists them).
const TOKENS: u8 = 25;
/// Tokens are below it, in any vocabulary.
const FIRST_TOKENS: u64 = 128;

/// All of a job's: pure functions of its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnSamples {
    /// train.seed.
    pub seed: u64,
    /// data.synthetic_samples.
    pub count: u64,
}

impl DrawnSamples {
    /// Their pictures.
    pub fn pictures(self) -> impl Iterator<Item = ListedImage> {
        (0..self.count as u32).map(move |number| {
            let name = format!("synthetic {number}");
            let sha256 = ContentHash::of(format!("{name} of seed {}", self.seed).as_bytes());
            let place = ImagePlace::Drawn { seed: self.seed, number };
            ListedImage { file: ImageFile { name, place }, sha256 }
        })
    }

    /// What all of them are, as one hash.
    pub fn hash(self) -> ContentHash {
        ContentHash::of(format!("{} synthetic samples of seed {}", self.count, self.seed).as_bytes())
    }

    /// The prompt of sample `number`: `length` numbers below 128, without a begin or an end.
    /// Source: MosaicML, diffusion-benchmark, data.py.
    pub fn tokens(self, number: usize, length: usize) -> Vec<i64> {
        let name = StreamName { seed: self.seed, purpose: TOKENS, step: 0, sample: number as u32 };
        let mut stream = Stream::new(name);
        (0..length).map(|_| stream.below(FIRST_TOKENS) as i64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_is_another_one_and_stays_what_it_is() {
        let samples = DrawnSamples { seed: 7, count: 3 };
        let pictures: Vec<ListedImage> = samples.pictures().collect();
        assert_eq!(pictures, samples.pictures().collect::<Vec<_>>());
        assert!(pictures.len() == 3 && pictures[0].sha256 != pictures[1].sha256);
        let tokens = samples.tokens(2, 77);
        assert!(tokens.len() == 77 && tokens.iter().all(|token| (0..128).contains(token)), "{tokens:?}");
        assert!(tokens == samples.tokens(2, 77) && tokens != samples.tokens(1, 77));
        let other = DrawnSamples { seed: 8, ..samples };
        assert!(other.tokens(2, 77) != tokens && other.hash() != samples.hash());
    }
}
