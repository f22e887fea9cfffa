//! How a job judges what it has learned so far, by a loss and by pictures.

use serde::{Deserialize, Serialize};

use crate::job::steps::is_due;

/// `[train]`'s options about the loss on held-out draws: noise, timesteps, latents and prompts that are drawn once
/// and that training never uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidationSpec {
    /// The loss is taken every so many steps and after the last; 0: never. Default 0.
    pub validation_loss_steps: u64,
    /// Samples that it is the mean of; rounded up to whole microbatches. Default 32.
    pub validation_loss_samples: u32,
    /// The embedding with the lowest validation loss is the job's, not the last. Default false.
    pub select_best: bool,
    /// Training stops after so many validations without a lower loss; 0: never. Default 0.
    pub early_stop_patience: u64,
}

impl ValidationSpec {
    /// Whether the loss is taken after `step` of `total_steps`.
    pub fn is_due(&self, step: u64, total_steps: u64) -> bool {
        is_due(self.validation_loss_steps, step, total_steps)
    }
}

/// `[train]`'s options about pictures that are drawn while training goes on, as diffusers has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewSpec {
    /// What to draw; empty: nothing. Default empty.
    pub validation_prompt: String,
    /// Pictures each time. Default 4.
    pub num_validation_images: u32,
    /// They are drawn every so many steps and after the last. Default 100.
    pub validation_steps: u64,
}

impl PreviewSpec {
    /// Whether pictures are drawn after `step` of `total_steps`.
    pub fn is_due(&self, step: u64, total_steps: u64) -> bool {
        !self.validation_prompt.is_empty() && is_due(self.validation_steps, step, total_steps)
    }
}
