//! The checks of what a LoRA is learned from, and where.

use std::collections::BTreeMap;

use super::{AdapterDraft, AdapterSpec, LoraSpec, TextEncoderDraft, TextEncoderSpec, limits};
use crate::job::{
    CommonSpec,
    check::{Check, is_part_of_name},
    kinds::JobDraft,
    pictures::{
        DataSpec, DenoiserDraft, DenoiserSpec, PromptSpec, TrainSpec, check_captions, check_class,
        checked_data,
        concepts::{WordDraft, WordSpec, check_nameless},
        fill_captioned_defaults,
        limits::LEARNING_RATE,
    },
    section::Spec as _,
    text::shortened,
};

/// Words that name layers, each by itself.
const WORDS: [&str; 2] = ["attention", "all"];

/// Fills in the defaults and checks every value.
pub(super) fn checked(draft: JobDraft, check: &mut Check, common: &CommonSpec) -> LoraSpec {
    let JobDraft { mut data, prompt, mut train, denoiser, text_encoder, lora, concepts, .. } = draft;
    let several = !concepts.is_empty();
    if several {
        check.nothing_beside_concepts(&mut data, &mut WordDraft::default());
    }
    check_pairs(&denoiser, &text_encoder, &lora, several, check);
    fill_captioned_defaults(&mut train);
    let prompt = PromptSpec::checked(prompt, check, "data");
    check_class(check, &prompt, &denoiser, train.enable_bucket == Some(true));
    denoiser.check_average(check);
    if several && prompt.synthetic_samples.is_some() {
        check.refuse(
            "data.synthetic_samples",
            "given together with [[concepts]], which have pictures of their own",
        );
    }
    let data = if several { DataSpec::default() } else { checked_data(data, &prompt, &train, check) };
    let train = TrainSpec::checked(train, check, "train");
    let word = WordSpec::checked(WordDraft::default(), check, "train");
    let spec = LoraSpec {
        data,
        prompt,
        concepts: check.concepts(concepts, &word, &train),
        train,
        denoiser: DenoiserSpec::checked(denoiser, check, "train"),
        text_encoder: TextEncoderSpec::checked(text_encoder, check, "train"),
        lora: Box::new(AdapterSpec::checked(lora, check, "lora")),
    };
    check_prompts(&spec, check);
    spec.data.check(check, spec.train.needs_image_count());
    let listed: Vec<String> = spec.concepts.iter().flat_map(|concept| concept.templates.clone()).collect();
    if several {
        check_nameless(check, &spec.train, listed.iter());
    }
    let templates = if several { listed } else { spec.templates() };
    spec.train.check(check, common, templates.iter());
    if spec.train.save_as_full_pipeline {
        let problem = "got true; a job of kind \"lora\" leaves adapters: load them beside their base model";
        check.refuse("train.save_as_full_pipeline", problem);
    }
    spec
}

/// Options that say something only beside another one.
fn check_pairs(
    denoiser: &DenoiserDraft,
    text_encoder: &TextEncoderDraft,
    lora: &AdapterDraft,
    several: bool,
    check: &mut Check,
) {
    let alone = [
        (
            "train.text_encoder_learning_rate",
            text_encoder.text_encoder_learning_rate.is_some()
                && text_encoder.train_text_encoder != Some(true),
            "train.train_text_encoder = true",
        ),
        (
            "train.embedding_learning_rate",
            text_encoder.embedding_learning_rate.is_some() && !several,
            "[[concepts]], whose rows it is about",
        ),
        ("train.ema_decay", denoiser.says_more_of_ema(), "train.use_ema = true"),
        ("lora.conv_alpha", lora.conv_alpha.is_some() && lora.conv_rank.unwrap_or(0) == 0, "lora.conv_rank"),
    ];
    for (field, _, other) in alone.into_iter().filter(|(_, is_alone, _)| *is_alone) {
        check.refuse(field, format!("says nothing without {other}: give both or neither"));
    }
    if lora.use_dora == Some(true) && lora.dropout.is_some_and(|share| share > 0.0) {
        let problem =
            "got a share beside lora.use_dora, with which the input is whole; lora.rank_dropout goes with it";
        check.refuse("lora.dropout", problem);
    }
    if lora.use_dora == Some(true) && lora.conv_rank.unwrap_or(0) > 0 {
        let problem = "got true beside lora.conv_rank; DoRA is for linear layers and 1x1 convolutions alone";
        check.refuse("lora.use_dora", problem);
    }
}

/// Pictures are described by captions, or by one prompt for all of them; no prompt has a word that is learned.
fn check_prompts(spec: &LoraSpec, check: &mut Check) {
    if !spec.concepts.is_empty() {
        if !spec.prompt.instance_prompt.is_empty() {
            let given = shortened(&spec.prompt.instance_prompt);
            let problem = format!("got {given:?} together with [[concepts]]; give templates in each of them");
            check.refuse("data.instance_prompt", problem);
        }
        return;
    }
    check_captions(&spec.prompt, &spec.data, &spec.train, "lora", check);
}

impl Check {
    pub(super) fn conv_alpha(&mut self, field: &str, given: Option<f64>, conv_rank: u32) -> Option<f64> {
        // Beside no rank it is refused with both.
        given.filter(|_| conv_rank > 0).map(|alpha| self.above_zero(field, Some(alpha), 1.0, limits::ALPHA))
    }

    pub(super) fn rate_if_given(&mut self, field: &str, given: Option<f64>) -> Option<f64> {
        given.map(|rate| self.number(field, Some(rate), 0.0, LEARNING_RATE))
    }

    pub(super) fn rank_pattern(
        &mut self,
        field: &str,
        given: Option<BTreeMap<String, f64>>,
    ) -> BTreeMap<String, f64> {
        let ranks = self.pattern(field, given);
        for (name, rank) in &ranks {
            if rank.fract() != 0.0 || !(1.0..=limits::RANK as f64).contains(rank) {
                let problem = format!("got {rank}; allowed: a whole number from 1 to {}", limits::RANK);
                self.refuse(&format!("{field}.{name}"), problem);
            }
        }
        ranks
    }

    pub(super) fn alpha_pattern(
        &mut self,
        field: &str,
        given: Option<BTreeMap<String, f64>>,
    ) -> BTreeMap<String, f64> {
        let alphas = self.pattern(field, given);
        for (name, alpha) in &alphas {
            self.above_zero(&format!("{field}.{name}"), Some(*alpha), 1.0, limits::ALPHA);
        }
        alphas
    }

    /// Numbers by parts of layers' names.
    fn pattern(&mut self, field: &str, given: Option<BTreeMap<String, f64>>) -> BTreeMap<String, f64> {
        let mut numbers = given.unwrap_or_default();
        if numbers.len() > limits::TARGETS {
            self.refuse(field, format!("got {}; allowed: at most {}", numbers.len(), limits::TARGETS));
            return BTreeMap::new();
        }
        let wrong: Vec<String> = numbers.keys().filter(|name| !is_part_of_name(name)).cloned().collect();
        for name in wrong {
            let problem = "allowed: a part of layers' names, such as \"down_blocks.0\" or \"attn2.to_k\"";
            self.refuse(&format!("{field}.{}", shortened(&name)), problem);
            numbers.remove(&name);
        }
        numbers
    }

    pub(super) fn initializer_lora(&mut self, field: &str, given: Option<String>) -> String {
        let place = given.unwrap_or_default();
        if !place.is_empty() {
            self.file_place(field, &place);
        }
        place
    }

    pub(super) fn targets(&mut self, field: &str, given: Option<Vec<String>>) -> Vec<String> {
        let Some(targets) = given else { return vec![WORDS[0].to_owned()] };
        let word = targets.iter().find(|target| WORDS.contains(&target.as_str()));
        if targets.is_empty() || targets.len() > limits::TARGETS {
            self.refuse(field, format!("got {}; allowed: 1 to {}", targets.len(), limits::TARGETS));
        } else if let Some(word) = word.filter(|_| targets.len() > 1) {
            self.refuse(field, format!("got {word:?} beside others; it stands alone, or is left out"));
        }
        for (index, target) in targets.iter().enumerate() {
            if !is_part_of_name(target) {
                let given = shortened(target);
                let problem =
                    format!("got {given:?}; allowed: the end of layers' names, such as \"attn2.to_v\"");
                self.refuse(&format!("{field}[{index}]"), problem);
            }
        }
        targets
    }
}
