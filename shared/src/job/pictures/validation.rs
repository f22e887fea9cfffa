//! How a job judges what it has learned so far, by a loss and by pictures.

use super::limits;
use crate::job::{section::section, steps::is_due};

section! {
    /// `[train]`'s options about the loss on held-out draws: noise, timesteps, latents and prompts that are drawn once
    /// and that training never uses.
    #[derive(Copy, Eq)]
    ValidationSpec from draft: ValidationDraft, validation_keys {
        /// The loss is taken every so many steps and after the last; 0: never. Default 0.
        validation_loss_steps: u64 = integer.count(0, 0..=limits::STEPS),
        /// Samples that it is the mean of; rounded up to whole microbatches. Default 32.
        validation_loss_samples: u32 = integer.count(32, 1..=limits::VALIDATION_LOSS_SAMPLES),
        /// What had the lowest validation loss is the job's result, not the last. Default false.
        select_best: bool = boolean.flag(false),
        /// Training stops after so many validations without a lower loss; 0: never. Default 0.
        early_stop_patience: u64 = integer.count(0, 0..=limits::STEPS),
    }
}

impl ValidationSpec {
    /// Whether the loss is taken after `step` of `total_steps`.
    pub fn is_due(&self, step: u64, total_steps: u64) -> bool {
        is_due(self.validation_loss_steps, step, total_steps)
    }
}

section! {
    /// `[train]`'s options about pictures that are drawn while training goes on, as diffusers has them.
    #[derive(Eq)]
    PreviewSpec from draft: PreviewDraft, preview_keys {
        /// What to draw; empty: nothing. Default empty.
        validation_prompt: String = string.line(limits::TEMPLATE_CHARACTERS),
        /// Pictures each time. Default 4.
        num_validation_images: u32 = integer.count(4, 1..=limits::VALIDATION_IMAGES),
        /// They are drawn every so many steps and after the last. Default 100.
        validation_steps: u64 = integer.count(100, 1..=limits::STEPS),
    }
}

impl PreviewSpec {
    /// Whether pictures are drawn after `step` of `total_steps`.
    pub fn is_due(&self, step: u64, total_steps: u64) -> bool {
        !self.validation_prompt.is_empty() && is_due(self.validation_steps, step, total_steps)
    }
}
