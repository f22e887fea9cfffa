//! diffusers' `examples/text_to_image/train_text_to_image.py`.
//!
//! Its defaults are those of the kind, but that it cuts pictures instead of squashing them.

use super::{
    options::{
        Becomes::{By, Key, LeftOut, Refused},
        CENTER_CROP, DIFFUSERS, DIFFUSERS_UNET, EVERYWHERE, Row, Script,
        Takes::{Nothing, Number, Text, Words},
        reader::{Reader, quoted},
    },
    text_to_image_lora::CAPTIONED,
};

pub(super) const SCRIPT: Script = Script {
    name: "train_text_to_image.py",
    kind: "unet_finetune",
    tables: &[EVERYWHERE, DIFFUSERS, DIFFUSERS_UNET, CAPTIONED, OWN],
    defaults: &[("train", "center_crop", "true"), ("train", "save_as_full_pipeline", "true")],
    without: CENTER_CROP,
    finish: |_| {},
};

const DREAM: &str = "the loss is that of one prediction: leave it out";

const OWN: &[Row] = &[
    ("gradient_checkpointing", Nothing, Key("train", "gradient_checkpointing")),
    ("input_perturbation", Number, Key("train", "input_perturbation")),
    ("use_ema", Nothing, Key("train", "use_ema")),
    (
        "offload_ema",
        Nothing,
        LeftOut("--set train.offload=disk puts the average and the moments on the disk"),
    ),
    ("foreach_ema", Nothing, LeftOut("the average moves with its parameter")),
    ("non_ema_revision", Text, Refused("deprecated there: give --variant=non_ema, or leave it out")),
    ("validation_prompts", Words, By("train.validation_prompt", first_prompt)),
    ("dream_training", Nothing, Refused(DREAM)),
    ("dream_detail_preservation", Number, LeftOut("it is about --dream_training")),
    ("tracker_project_name", Text, LeftOut("TensorBoard's file of events lies in the output folder")),
];

/// Pictures are drawn of one prompt.
fn first_prompt(reader: &mut Reader, shown: &str, prompts: &[String]) {
    match prompts {
        [prompt] => reader.set(("train", "validation_prompt"), quoted(prompt)),
        _ => reader.refuse(
            "train.validation_prompt",
            format!(
                "{shown}: got {} prompts; pictures are drawn of one while training goes on",
                prompts.len()
            ),
        ),
    }
}
