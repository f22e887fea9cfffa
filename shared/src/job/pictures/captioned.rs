//! What kinds share that learn from pictures with captions.

use super::{DataDraft, DataSpec, PromptSpec, TrainDraft, TrainSpec};
use crate::{
    job::{check::Check, reader::Keys as _, section::Spec as _, text::shortened},
    templates::Template,
};

/// The prompt of a picture whose caption is all of it.
pub(in crate::job) const CAPTION: &str = "[caption]";

/// The prompts that pictures' captions stand in; none, where all pictures have the same prompt.
pub(in crate::job) fn caption_templates(prompt: &PromptSpec, train: &TrainSpec) -> Vec<String> {
    let has_one_prompt = !prompt.instance_prompt.is_empty() || prompt.synthetic_samples.is_some();
    match (has_one_prompt, train.templates.is_empty()) {
        (true, _) => Vec::new(),
        (false, false) => train.templates.clone(),
        (false, true) => vec![CAPTION.to_owned()],
    }
}

/// Where defaults are not those of `[train]` of other kinds, they are those of diffusers' train_text_to_image.py and
/// train_text_to_image_lora.py: passes over the pictures, each of which is shown once in one, and a clipped gradient.
pub(in crate::job) fn fill_captioned_defaults(train: &mut TrainDraft) {
    train.max_grad_norm.get_or_insert(1.0);
    train.repeats.get_or_insert(1);
    if train.max_train_steps.is_none() {
        train.num_train_epochs.get_or_insert(100);
    }
}

/// `[data]` of pictures, or of none where the samples are synthetic.
pub(in crate::job) fn checked_data(
    data: DataDraft,
    prompt: &PromptSpec,
    train: &TrainDraft,
    check: &mut Check,
) -> DataSpec {
    if prompt.synthetic_samples.is_none() {
        return DataSpec::checked(data, check, "data");
    }
    let beside = data.given().into_iter().map(|key| format!("data.{key}"));
    let texts = [
        ("data.instance_prompt", !prompt.instance_prompt.is_empty()),
        ("data.class_images", !prompt.class_images.is_empty()),
        ("train.templates", train.templates.as_ref().is_some_and(|templates| !templates.is_empty())),
        ("train.enable_bucket", train.enable_bucket == Some(true)),
    ];
    let texts = texts.into_iter().filter(|(_, given)| *given).map(|(field, _)| field.to_owned());
    for field in beside.chain(texts) {
        check.refuse(&field, "given beside data.synthetic_samples, which are noise: give one of the two");
    }
    if train.max_train_steps.is_none() {
        check.refuse(
            "train.max_train_steps",
            "missing; data.synthetic_samples has no passes: give the number of steps",
        );
    }
    DataSpec::default()
}

/// Pictures are described by captions, or by one prompt for all of them; no prompt has a word that is learned.
pub(in crate::job) fn check_captions(
    prompt: &PromptSpec,
    data: &DataSpec,
    train: &TrainSpec,
    kind: &str,
    check: &mut Check,
) {
    if !prompt.instance_prompt.is_empty() {
        if !train.templates.is_empty() {
            let problem =
                "given beside data.instance_prompt, which is the prompt of all pictures: give one of the two";
            check.refuse("train.templates", problem);
        }
        if !data.caption_column.is_empty() {
            let given = shortened(&data.caption_column);
            let problem = format!("got {given:?} beside data.instance_prompt, with which no caption is read");
            check.refuse("data.caption_column", problem);
        }
    }
    for (index, template) in train.templates.iter().enumerate() {
        if Template::parse(template).is_ok_and(|read| read.has_name()) {
            let problem = format!(
                "got {template:?}; a job of kind {kind:?} learns no word that could stand there: write [caption] alone"
            );
            check.refuse(&format!("train.templates[{index}]"), problem);
        }
    }
}
