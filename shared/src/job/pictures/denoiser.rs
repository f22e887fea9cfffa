//! What of `[train]` is about the network that predicts the noise, where parts of it are trained.

use super::limits;
use crate::job::section::section;

section! {
    /// Names and meanings are those of diffusers' `train_text_to_image.py` and its EMAModel.
    DenoiserSpec from draft: DenoiserDraft, denoiser_keys {
        /// The result is a running average of what is learned, which pictures and validation losses go by too. Default false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        use_ema: bool = boolean.flag(false),
        /// The largest share of the average that a step keeps. Default 0.9999.
        #[serde(default = "ema_decay", skip_serializing_if = "is_ema_decay")]
        ema_decay: f64 = number.share(EMA_DECAY),
        /// Steps after which the average begins. Default 0.
        #[serde(default, skip_serializing_if = "is_zero")]
        ema_update_after_step: u64 = integer.count(0, 0..=limits::STEPS),
        /// More noise for the latents, times this, which is not to be predicted (Ning et al. 2023); 0: none. Default 0.
        #[serde(default, skip_serializing_if = "is_none")]
        input_perturbation: f64 = number.number(0.0, limits::INPUT_PERTURBATION),
        /// Half of the samples show a picture's mirror image. Default false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        random_flip: bool = boolean.flag(false),
    }
}

const EMA_DECAY: f64 = 0.9999;

fn ema_decay() -> f64 {
    EMA_DECAY
}

fn is_ema_decay(given: &f64) -> bool {
    *given == EMA_DECAY
}

fn is_zero(given: &u64) -> bool {
    *given == 0
}

fn is_none(given: &f64) -> bool {
    *given == 0.0
}

impl DenoiserDraft {
    /// Whether more is said of the average than its defaults, though none is asked for.
    pub(in crate::job) fn says_more_of_ema(&self) -> bool {
        let decay = self.ema_decay.is_some_and(|decay| decay != EMA_DECAY);
        self.use_ema != Some(true) && (decay || self.ema_update_after_step.is_some_and(|step| step != 0))
    }
}

impl DenoiserSpec {
    /// The share of the average that optimizer step `number`, from 1, keeps; none: no average is kept.
    /// Source: diffusers, training_utils.py, EMAModel.get_decay.
    pub fn average_decay(&self, number: u64) -> Option<f64> {
        let step = number.saturating_sub(self.ema_update_after_step).saturating_sub(1) as f64;
        self.use_ema
            .then(|| if step > 0.0 { ((1.0 + step) / (10.0 + step)).min(self.ema_decay) } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_begins_with_the_parameters_and_slows_down() {
        let mut spec = DenoiserSpec {
            use_ema: true,
            ema_decay: EMA_DECAY,
            ema_update_after_step: 0,
            input_perturbation: 0.0,
            random_flip: false,
        };
        let decays = [1, 2, 3, 10, 1_000_000].map(|number| spec.average_decay(number));
        assert_eq!(decays, [0.0, 2.0 / 11.0, 0.25, 10.0 / 19.0, EMA_DECAY].map(Some));
        spec.ema_update_after_step = 2;
        assert_eq!([3, 4].map(|number| spec.average_decay(number)), [0.0, 2.0 / 11.0].map(Some));
        spec.use_ema = false;
        assert_eq!(spec.average_decay(9), None);
    }
}
