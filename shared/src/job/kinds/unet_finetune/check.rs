//! The checks of what a UNet is trained on, and how.

use super::{UnetFinetuneSpec, UnetSpec, limits};
use crate::job::{
    CommonSpec,
    check::{Check, is_part_of_name},
    kinds::JobDraft,
    pictures::{
        DenoiserSpec, PromptSpec, TrainSpec, caption_templates, check_captions, check_class, checked_data,
        fill_captioned_defaults,
    },
    section::Spec as _,
    text::shortened,
};

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
    spec
}

impl Check {
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
