//! Pictures, noise and words for a measurement: not random enough for anything else, and the same each time.

use std::sync::Arc;

use crate::engine::{Microbatch, ModelInfo, Pixels};

/// Position of the learned word in the prompt.
const PLACE: usize = 4;
/// The stream of numbers that each input takes.
const LATENTS: u64 = 1;
const NOISE: u64 = 2;
const PICTURE: u64 = 3;

/// Values with mean 0 and variance 1 (the sum of twelve uniform ones), by place and stream alone.
fn normal(stream: u64, count: usize) -> Vec<f32> {
    let uniform = |index: u64| {
        let mut x = (index ^ (stream << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 32;
        x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^= x >> 32;
        (x >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count as u64).map(|index| (0..12).map(|part| uniform(index * 12 + part)).sum::<f32>() - 6.0).collect()
}

/// A picture of that side.
pub(super) fn picture(side: usize) -> Pixels {
    Pixels { height: side, width: side, data: normal(PICTURE, 3 * side * side) }
}

/// Inputs that all microbatches share.
#[derive(Clone, Debug)]
pub(super) struct Inputs {
    info: ModelInfo,
    batch: usize,
    side: usize,
    latents: Vec<f32>,
    noise: Vec<f32>,
}

impl Inputs {
    /// `batch` samples of latents with that side.
    pub(super) fn new(info: &ModelInfo, batch: usize, side: usize) -> Self {
        let count = batch * info.latent_channels * side * side;
        Self { info: info.clone(), batch, side, latents: normal(LATENTS, count), noise: normal(NOISE, count) }
    }

    /// The id of the token table's last row.
    pub(super) fn last_word(&self) -> i64 {
        self.info.vocab_size as i64 - 1
    }

    /// The microbatch of a step, in whose prompts is nothing that is learned.
    pub(super) fn of_known_words(&self, step: usize) -> Microbatch {
        let mut microbatch = self.microbatch(step, 1, &Arc::default());
        let last = self.last_word();
        microbatch.input_ids.iter_mut().for_each(|id| *id = (*id).min(last));
        microbatch
    }

    /// The microbatch of a step: sample i of it shows one of the concepts, of which `rows` has one each.
    pub(super) fn microbatch(&self, step: usize, concepts: usize, rows: &Arc<Vec<f32>>) -> Microbatch {
        let Self { info, batch, side, latents, noise } = self;
        let words = info.vocab_size.min(40_000) as i64;
        let mut input_ids: Vec<i64> =
            (0..batch * info.max_text_length).map(|place| (place as i64 * 37) % words).collect();
        for (sample, ids) in input_ids.chunks_mut(info.max_text_length).enumerate() {
            if let Some(id) = ids.get_mut(PLACE) {
                *id = (info.vocab_size + (step + sample) % concepts) as i64;
            }
        }
        let timesteps =
            (0..*batch).map(|sample| ((step * 131 + sample * 17) % info.num_train_timesteps) as i64);
        Microbatch {
            batch: *batch,
            latent_channels: info.latent_channels,
            latent_height: *side,
            latent_width: *side,
            latents: latents.clone(),
            noise: noise.clone(),
            timesteps: timesteps.collect(),
            input_ids,
            rows: rows.clone(),
            snr_gamma: None,
            extras: crate::engine::Extras::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_normal_enough() {
        let values = normal(NOISE, 20_000);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        assert_eq!(values, normal(NOISE, 20_000));
        assert_ne!(values, normal(LATENTS, 20_000));
    }
}
