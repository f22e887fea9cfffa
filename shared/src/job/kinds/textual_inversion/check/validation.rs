//! The options by which a job judges itself.

use super::super::{PreviewSpec, TrainDraft, ValidationSpec};
use super::{Check, limits, printable};

impl Check {
    pub(super) fn validation(&mut self, draft: &TrainDraft) -> ValidationSpec {
        let spec = ValidationSpec {
            validation_loss_steps: self.count(
                "train.validation_loss_steps",
                draft.validation_loss_steps,
                0,
                0..=limits::STEPS,
            ),
            validation_loss_samples: self.count(
                "train.validation_loss_samples",
                draft.validation_loss_samples,
                32,
                1..=limits::VALIDATION_LOSS_SAMPLES,
            ),
            select_best: draft.select_best.unwrap_or(false),
            early_stop_patience: self.count(
                "train.early_stop_patience",
                draft.early_stop_patience,
                0,
                0..=limits::STEPS,
            ),
        };
        // A number that is wrong has been told already.
        if spec.validation_loss_steps == 0 && draft.validation_loss_steps.unwrap_or(0) == 0 {
            const WHY: &str = "it goes by the validation loss: give train.validation_loss_steps too";
            if spec.select_best {
                self.refuse("train.select_best", format!("got true; {WHY}"));
            }
            if spec.early_stop_patience > 0 {
                self.refuse("train.early_stop_patience", format!("got {}; {WHY}", spec.early_stop_patience));
            }
        }
        spec
    }

    pub(super) fn previews(&mut self, draft: &TrainDraft) -> PreviewSpec {
        let validation_prompt = draft.validation_prompt.clone().unwrap_or_default();
        if let Err(problem) = printable(&validation_prompt, limits::TEMPLATE_CHARACTERS) {
            self.refuse("train.validation_prompt", problem);
        }
        PreviewSpec {
            validation_prompt,
            num_validation_images: self.count(
                "train.num_validation_images",
                draft.num_validation_images,
                4,
                1..=limits::VALIDATION_IMAGES,
            ),
            validation_steps: self.count(
                "train.validation_steps",
                draft.validation_steps,
                100,
                1..=limits::STEPS,
            ),
        }
    }
}
