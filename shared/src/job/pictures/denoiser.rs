//! What of `[train]` is about the network that predicts the noise, where parts of it are trained.

use super::{CLASS_IMAGES, PromptSpec, limits};
use crate::job::{check::Check, section::section};

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
        /// Steps after which what a step gave to the average counts half; 0: the average's share rises to `ema_decay` instead, as in
        /// EMAModel. Source: MosaicML's Composer, `EMA`. Default 0.
        #[serde(default, skip_serializing_if = "is_none")]
        ema_half_life: f64 = number.number(0.0, limits::STEPS as f64),
        /// More noise for the latents, times this, which is not to be predicted (Ning et al. 2023); 0: none. Default 0.
        #[serde(default, skip_serializing_if = "is_none")]
        input_perturbation: f64 = number.number(0.0, limits::INPUT_PERTURBATION),
        /// Half of the samples show a picture's mirror image. Default false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        random_flip: bool = boolean.flag(false),
        /// Samples have noise of this level at least: a timestep of the model's schedule. Default 0.
        #[serde(default, skip_serializing_if = "is_zero")]
        min_timestep: u64 = integer.count(0, 0..=limits::TIMESTEPS),
        /// What the VAE makes of a picture is kept, for later steps and later jobs. Otherwise it is made anew for each sample: the
        /// same bits. Default true.
        #[serde(default = "yes", skip_serializing_if = "is_yes")]
        cache_latents: bool = boolean.flag(true),
        /// Pictures of the class that there are to be; of more in its folder the first ones count. Default 100.
        #[serde(default = "num_class_images", skip_serializing_if = "is_num_class_images")]
        num_class_images: u32 = integer.count(NUM_CLASS_IMAGES, 1..=limits::CLASS_IMAGES),
        /// How much the loss of the class counts beside that of the pictures. Default 1.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        prior_loss_weight: f64 = number.number(1.0, limits::PRIOR_LOSS_WEIGHT),
    }
}

const EMA_DECAY: f64 = 0.9999;
const NUM_CLASS_IMAGES: u32 = 100;

fn num_class_images() -> u32 {
    NUM_CLASS_IMAGES
}

fn is_num_class_images(given: &u32) -> bool {
    *given == NUM_CLASS_IMAGES
}

fn one() -> f64 {
    1.0
}

fn is_one(given: &f64) -> bool {
    *given == 1.0
}

fn ema_decay() -> f64 {
    EMA_DECAY
}

fn is_ema_decay(given: &f64) -> bool {
    *given == EMA_DECAY
}

fn yes() -> bool {
    true
}

fn is_yes(given: &bool) -> bool {
    *given
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
        let rate = self.has_other_decay() || self.has_half_life();
        self.use_ema != Some(true) && (rate || self.ema_update_after_step.is_some_and(|step| step != 0))
    }

    fn has_other_decay(&self) -> bool {
        self.ema_decay.is_some_and(|decay| decay != EMA_DECAY)
    }

    fn has_half_life(&self) -> bool {
        self.ema_half_life.is_some_and(|steps| steps != 0.0)
    }

    /// An average has one rate.
    pub(in crate::job) fn check_average(&self, check: &mut Check) {
        if self.has_other_decay() && self.has_half_life() {
            check.refuse("train.ema_half_life", "given beside train.ema_decay: give one of the two");
        }
    }
}

impl DenoiserDraft {
    /// The first option that says something of a class, where none is given.
    fn says_more_of_a_class(&self) -> Option<&'static str> {
        let weight = self.prior_loss_weight.is_some_and(|weight| weight != 1.0);
        let count = self.num_class_images.is_some_and(|count| count != i64::from(NUM_CLASS_IMAGES));
        if weight { Some("train.prior_loss_weight") } else { count.then_some("train.num_class_images") }
    }
}

/// A class has pictures and a prompt, and its pictures are squares.
pub(in crate::job) fn check_class(
    check: &mut Check,
    prompt: &PromptSpec,
    denoiser: &DenoiserDraft,
    enable_bucket: bool,
) {
    let (images, text) = (!prompt.class_images.is_empty(), !prompt.class_prompt.is_empty());
    match (images, text) {
        (true, false) => {
            check.refuse("data.class_prompt", "missing; say what the pictures of data.class_images show")
        }
        (false, true) => check.refuse(
            CLASS_IMAGES,
            "missing; give a folder for the pictures of data.class_prompt: those that it lacks are drawn",
        ),
        (false, false) => {
            if let Some(field) = denoiser.says_more_of_a_class() {
                check.refuse(
                    field,
                    "says nothing without data.class_images and data.class_prompt: give all or none",
                );
            }
        }
        (true, true) if enable_bucket => check.refuse(
            "train.enable_bucket",
            "got true beside data.class_images, whose pictures are squares: give one of the two",
        ),
        (true, true) => (),
    }
}

impl DenoiserSpec {
    /// The share of the average that optimizer step `number`, from 1, keeps; none: no average is kept.
    /// Sources: diffusers, training_utils.py, EMAModel.get_decay; of a half-life Composer, algorithms/ema/ema.py.
    pub fn average_decay(&self, number: u64) -> Option<f64> {
        let step = number.saturating_sub(self.ema_update_after_step).saturating_sub(1) as f64;
        self.use_ema.then(|| match self.ema_half_life {
            _ if step == 0.0 => 0.0,
            0.0 => ((1.0 + step) / (10.0 + step)).min(self.ema_decay),
            half_life => (-1.0 / half_life).exp2(),
        })
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
            ema_half_life: 0.0,
            random_flip: false,
            min_timestep: 0,
            cache_latents: true,
            num_class_images: NUM_CLASS_IMAGES,
            prior_loss_weight: 1.0,
        };
        let decays = [1, 2, 3, 10, 1_000_000].map(|number| spec.average_decay(number));
        assert_eq!(decays, [0.0, 2.0 / 11.0, 0.25, 10.0 / 19.0, EMA_DECAY].map(Some));
        spec.ema_update_after_step = 2;
        assert_eq!([3, 4].map(|number| spec.average_decay(number)), [0.0, 2.0 / 11.0].map(Some));
        spec.ema_half_life = 1000.0;
        let decays = [2, 3, 4, 9].map(|number| spec.average_decay(number).unwrap());
        assert_eq!(decays[..2], [0.0, 0.0]);
        // 2^(-1/1000), as MosaicML's benchmark has it.
        assert!(decays[2..].iter().all(|decay| (decay - 0.999_307_09).abs() < 1e-8), "{decays:?}");
        spec.use_ema = false;
        assert_eq!(spec.average_decay(9), None);
    }
}
