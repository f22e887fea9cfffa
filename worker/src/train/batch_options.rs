//! What of a job says which inputs a microbatch has.

use std::ops::Range;

/// The job's numbers that say which inputs a microbatch has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchOptions {
    /// train.seed.
    pub seed: u64,
    /// M: microbatches in a step, over all ranks; at least 1.
    pub microbatches: u32,
    /// b: samples in a microbatch; at least 1.
    pub batch: u32,
    /// The VAE's, from its config.json.
    pub scaling_factor: f64,
    /// The noise schedule's, at least 1.
    pub num_train_timesteps: usize,
    /// train.min_timestep: below that.
    pub min_timestep: usize,
    /// train.noise_offset; 0: none.
    pub noise_offset: f64,
    /// Half of the samples are mirrored.
    pub random_flip: bool,
    /// train.input_perturbation; 0: none.
    pub input_perturbation: f64,
    /// train.snr_gamma; none: all samples weigh the same.
    pub snr_gamma: Option<f64>,
    /// train.caption_dropout: the share of samples whose caption is left empty.
    pub caption_dropout: f64,
    /// train.prior_loss_weight; none: no concept is the class. Otherwise the last one is, whose images are repeated 0 times: each
    /// sample has one of them behind it, and the loss is the mean of the samples' plus this times the mean of theirs.
    pub prior_loss_weight: Option<f64>,
    /// train.enable_bucket: images may differ in size, and those of a microbatch do not.
    pub bucketed: bool,
}

impl BatchOptions {
    /// The timesteps that samples have.
    pub(super) fn timesteps(&self) -> Range<usize> {
        self.min_timestep..self.num_train_timesteps
    }

    /// Samples that a microbatch computes with, those of the class included.
    pub(super) fn width(&self) -> u32 {
        self.batch.saturating_mul(1 + u32::from(self.prior_loss_weight.is_some()))
    }
}
