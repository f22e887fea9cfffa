//! diffusers' `examples/text_to_image/train_text_to_image_lora.py`.
//!
//! Its defaults are those of the kind, but that it cuts pictures instead of squashing them.

use super::options::{
    Becomes::{By, Key, LeftOut, Only, Refused},
    CENTER_CROP, DIFFUSERS, DIFFUSERS_UNET, EVERYWHERE, NO_CHECKPOINTING, PREVIEWS, Row, Script,
    Takes::{Nothing, Number, Text},
    reader,
};

pub(super) const SCRIPT: Script = Script {
    name: "train_text_to_image_lora.py",
    kind: "lora",
    tables: &[EVERYWHERE, DIFFUSERS, DIFFUSERS_UNET, NO_CHECKPOINTING, PREVIEWS, CAPTIONED, OWN],
    defaults: &[("train", "center_crop", "true")],
    without: CENTER_CROP,
    finish: |_| {},
};

const OWN: &[Row] = &[("rank", Number, Key("lora", "rank"))];

/// Options of both scripts for pictures with captions.
pub(super) const CAPTIONED: &[Row] = &[
    ("train_data_dir", Text, Key("data", "images")),
    ("dataset_name", Text, By("data.source", reader::dataset)),
    ("dataset_config_name", Text, Refused("name a folder in --train_data_dir: leave it out")),
    ("image_column", Text, Only(&["image"], "metadata names pictures in the column file_name: leave it out")),
    ("caption_column", Text, Key("data", "caption_column")),
    (
        "max_train_samples",
        Number,
        Refused("all pictures of the folder are shown: take some out, and leave it out"),
    ),
    ("cache_dir", Text, LeftOut("models are kept in the cache of Hugging Face's tools")),
    ("random_flip", Nothing, Key("train", "random_flip")),
    ("snr_gamma", Number, Key("train", "snr_gamma")),
    ("noise_offset", Number, Key("train", "noise_offset")),
    ("prediction_type", Text, Key("model", "prediction_type")),
];
