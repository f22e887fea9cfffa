//! Streams of random words that have no state to keep: each is a pure function of (seed, purpose, step, sample).
//!
//! **The layout is fixed**: a stream is the words w\[0\], w\[1\], … with w\[4k..4k+4\] = Philox4x32-10 of
//! key = (seed's low word, seed's high word) and counter = (k, sample, step's low word, step's next 24 bits | purpose << 24).
//! What the purposes are stands where they are used: `worker/src/train/draws.rs` has 1 to 15 and 20, `worker/text/src/sampling.rs` 16,
//! `worker/model/src/gpt2/initial.rs` 17, `worker/src/generate_text/sampling.rs` 18,
//! `worker/model/src/gpt2/dropout.rs` 19, `worker/src/data/drawn.rs` 25.

use crate::philox::philox4x32;

/// Whose words these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamName {
    /// The job's.
    pub seed: u64,
    /// What is drawn, below 256.
    pub purpose: u8,
    /// The optimizer update, below 2^56.
    pub step: u64,
    /// The sample in it.
    pub sample: u32,
}

/// A position in one stream of words.
#[derive(Clone, Debug)]
pub struct Stream {
    key: [u32; 2],
    sample: u32,
    step: [u32; 2],
    /// Index of the next word.
    next: u64,
    /// The block that word `next - 1` is in.
    block: [u32; 4],
}

impl Stream {
    /// At its beginning.
    pub fn new(name: StreamName) -> Self {
        let StreamName { seed, purpose, step, sample } = name;
        let high = ((step >> 32) as u32 & 0x00ff_ffff) | u32::from(purpose) << 24;
        let key = [seed as u32, (seed >> 32) as u32];
        Self { key, sample, step: [step as u32, high], next: 0, block: [0; 4] }
    }

    /// The next word.
    #[inline]
    pub fn word(&mut self) -> u32 {
        let place = (self.next % 4) as usize;
        if place == 0 {
            let number = (self.next / 4) as u32;
            self.block = philox4x32(self.key, [number, self.sample, self.step[0], self.step[1]]);
        }
        self.next += 1;
        self.block[place]
    }

    /// A number below `bound` (at least 1), from 64 bits x at a time (w\[2j\] the low half, w\[2j+1\] the high): the high half
    /// of the 128-bit product x·bound; while the low half is below 2^64 mod bound, the next x is taken instead.
    /// Source: Lemire 2019, "Fast Random Integer Generation in an Interval", algorithm 5.
    pub fn below(&mut self, bound: u64) -> u64 {
        let bound = bound.max(1);
        let rejected = bound.wrapping_neg() % bound;
        loop {
            let x = u64::from(self.word()) | u64::from(self.word()) << 32;
            let product = u128::from(x) * u128::from(bound);
            if product as u64 >= rejected {
                return (product >> 64) as u64;
            }
        }
    }
}
