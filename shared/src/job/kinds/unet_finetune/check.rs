//! The checks of what a UNet is trained on, and how.

use super::{UnetFinetuneSpec, UnetSpec, limits};
use crate::job::{
    CommonSpec, SumOrder,
    check::{Check, is_part_of_name},
    kinds::JobDraft,
    pictures::{
        DenoiserSpec, PromptSpec, TrainSpec, caption_templates, check_captions, check_class, checked_data,
        fill_captioned_defaults,
    },
    section::Spec as _,
    text::shortened,
};

/// Of rounds. Source: Douillard et al. 2023, DiLoCo, whose rounds have 500 steps.
const LOCAL_STEPS: u32 = 100;
const OUTER_LEARNING_RATE: f64 = 0.7;
const OUTER_MOMENTUM: f64 = 0.9;

/// Words that name parameters, each by itself.
const WORDS: [&str; 2] = ["all", "cross_attention"];

/// Fills in the defaults and checks every value.
pub(super) fn checked(draft: JobDraft, check: &mut Check, common: &CommonSpec) -> UnetFinetuneSpec {
    let JobDraft { data, prompt, mut train, denoiser, unet, .. } = draft;
    if denoiser.says_more_of_ema() {
        check.refuse("train.ema_decay", "says nothing without train.use_ema = true: give both or neither");
    }
    denoiser.check_average(check);
    fill_captioned_defaults(&mut train);
    let prompt = PromptSpec::checked(prompt, check, "data");
    check_class(check, &prompt, &denoiser, train.enable_bucket == Some(true));
    let spec = UnetFinetuneSpec {
        data: checked_data(data, &prompt, &train, check),
        prompt,
        train: TrainSpec::checked(train, check, "train"),
        denoiser: DenoiserSpec::checked(denoiser, check, "train"),
        unet: UnetSpec::checked(unet, check, "train"),
    };
    check_captions(&spec.prompt, &spec.data, &spec.train, "unet_finetune", check);
    spec.data.check(check, spec.train.needs_image_count());
    spec.train.check(check, common, caption_templates(&spec.prompt, &spec.train).iter());
    spec.check_rounds(check);
    spec
}

impl UnetFinetuneSpec {
    /// A step of the job is a round of steps.
    fn check_rounds(&self, check: &mut Check) {
        let Some(local_steps) = self.unet.local_steps else { return };
        if self.unet.shard_optimizer {
            check.refuse(
                "train.shard_optimizer",
                "got true beside train.exchange = \"local\", with which each replica has moments of its own: give one of the two",
            );
        }
        if self.train.needs_image_count() {
            check.refuse(
                "train.max_train_steps",
                "missing; with train.exchange = \"local\" say how many rounds of train.local_steps steps there are",
            );
        }
        let all = u64::from(local_steps).saturating_mul(self.train.max_train_steps);
        if all > limits::ALL_LOCAL_STEPS {
            let (rounds, most) = (self.train.max_train_steps, limits::ALL_LOCAL_STEPS);
            let problem =
                format!("got {local_steps}, that is {all} steps in {rounds} rounds; allowed: {most}");
            check.refuse("train.local_steps", problem);
        }
    }
}

impl Check {
    pub(super) fn local_steps(&mut self, field: &str, given: Option<i64>, exchange: SumOrder) -> Option<u32> {
        let given = self.of_rounds(field, given, exchange)?;
        Some(self.count(field, given, LOCAL_STEPS, 1..=limits::LOCAL_STEPS))
    }

    pub(super) fn outer_learning_rate(
        &mut self,
        field: &str,
        given: Option<f64>,
        exchange: SumOrder,
    ) -> Option<f64> {
        let given = self.of_rounds(field, given, exchange)?;
        Some(self.above_zero(field, given, OUTER_LEARNING_RATE, limits::OUTER_LEARNING_RATE))
    }

    pub(super) fn outer_momentum(
        &mut self,
        field: &str,
        given: Option<f64>,
        exchange: SumOrder,
    ) -> Option<f64> {
        let given = self.of_rounds(field, given, exchange)?;
        Some(self.share(field, given, OUTER_MOMENTUM))
    }

    /// What is given of an option of rounds, where there are any.
    fn of_rounds<T>(&mut self, field: &str, given: Option<T>, exchange: SumOrder) -> Option<Option<T>> {
        if exchange == SumOrder::Local {
            return Some(given);
        }
        if given.is_some() {
            self.refuse(field, "says nothing without train.exchange = \"local\": give both or neither");
        }
        None
    }

    pub(super) fn trainable(&mut self, field: &str, given: Option<Vec<String>>) -> Vec<String> {
        let Some(parts) = given else { return vec![WORDS[0].to_owned()] };
        let word = parts.iter().find(|part| WORDS.contains(&part.as_str()));
        if parts.is_empty() || parts.len() > limits::PATTERNS {
            self.refuse(field, format!("got {}; allowed: 1 to {}", parts.len(), limits::PATTERNS));
        } else if let Some(word) = word.filter(|_| parts.len() > 1) {
            self.refuse(field, format!("got {word:?} beside others; it stands alone, or is left out"));
        }
        for (index, part) in parts.iter().enumerate() {
            if !is_part_of_name(part) {
                let given = shortened(part);
                let problem = format!(
                    "got {given:?}; allowed: a part of parameters' names, such as \"attn2.to_k\" or \"up_blocks.1\""
                );
                self.refuse(&format!("{field}[{index}]"), problem);
            }
        }
        parts
    }
}
