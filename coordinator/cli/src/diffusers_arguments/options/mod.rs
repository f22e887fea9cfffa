//! What a table says of a script's options, and the tables that scripts share.

pub(super) mod reader;

use reader::Reader;

/// What kind of value an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Text,
    Number,
    /// Nothing: it is true where it stands.
    Nothing,
    /// As many words as there are before the next option.
    Words,
}

/// What becomes of an option.
#[derive(Clone, Copy)]
pub(super) enum Becomes {
    /// A key of the job: its section and its name.
    Key(&'static str, &'static str),
    /// The same, beside another option; without that one it has no effect in the script either.
    KeyBeside(&'static str, &'static str, &'static str),
    /// A key with this value, in TOML.
    Sets(&'static str, &'static str, &'static str),
    /// Nothing: what is learned is the same, or as near to it as it gets. Why.
    LeftOut(&'static str),
    /// Nothing with these values, which are what is done here. What to do instead of others.
    Only(&'static [&'static str], &'static str),
    /// The result would be another one, or not be where it is wanted. What to do instead.
    Refused(&'static str),
    /// A function reads its words, given its name as it is shown. First: the job's key that it is about, if any.
    By(&'static str, fn(&mut Reader, &str, &[String])),
    /// The script's `finish` looks at it, together with others.
    Noted(&'static str),
}

/// An option: its name without the dashes, what it takes and what becomes of it. In a table a row may be about several: their
/// names are separated by spaces.
pub(super) type Row = (&'static str, Takes, Becomes);

/// Each option of a table.
pub(super) fn each(table: &'static [Row]) -> impl Iterator<Item = Row> {
    table.iter().flat_map(|(names, takes, becomes)| names.split(' ').map(|name| (name, *takes, *becomes)))
}

/// A training script of other people, as data.
pub(super) struct Script {
    /// Its file.
    pub(super) name: &'static str,
    /// The kind of job that does what it does.
    pub(super) kind: &'static str,
    /// All of its options.
    pub(super) tables: &'static [&'static [Row]],
    /// Its defaults that are not the job's: section, key, value in TOML.
    pub(super) defaults: &'static [(&'static str, &'static str, &'static str)],
    /// What it does without an option, and a job does not: the option, and what to say.
    pub(super) without: &'static [(&'static str, &'static str)],
    /// What depends on several options, after each of them was read and before the defaults.
    pub(super) finish: fn(&mut Reader),
}

impl Script {
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        self.tables.iter().flat_map(|table| each(table))
    }
}

use Becomes::{By, Key, LeftOut, Refused};
use Takes::{Nothing, Number, Text};

/// Options that all scripts have.
pub(super) const EVERYWHERE: &[Row] = &[
    ("pretrained_model_name_or_path", Text, By("model.base", reader::base)),
    ("output_dir", Text, By("", reader::output_dir)),
    ("seed", Number, Key("train", "seed")),
    ("train_batch_size", Number, Key("train", "train_batch_size")),
    ("max_train_steps", Number, Key("train", "max_train_steps")),
    ("gradient_accumulation_steps", Number, Key("train", "gradient_accumulation_steps")),
    ("learning_rate", Number, Key("train", "learning_rate")),
    ("lr_scheduler", Text, Key("train", "lr_scheduler")),
    ("mixed_precision", Text, Key("train", "mixed_precision")),
    ("logging_dir", Text, LeftOut("TensorBoard's file of events lies in the output folder")),
];

/// Of scripts that train little.
pub(super) const NO_CHECKPOINTING: &[Row] = &[(
    "gradient_checkpointing",
    Nothing,
    LeftOut("a step needs a third less memory than there, without recomputation"),
)];

/// Of scripts that draw one prompt's pictures while they train.
pub(super) const PREVIEWS: &[Row] = &[
    ("validation_prompt", Text, Key("train", "validation_prompt")),
    ("num_validation_images", Number, Key("train", "num_validation_images")),
];

/// Options that diffusers' scripts have beside those.
pub(super) const DIFFUSERS: &[Row] = &[
    ("revision", Text, Key("model", "revision")),
    ("variant", Text, Key("model", "variant")),
    ("resolution", Number, Key("train", "resolution")),
    ("center_crop", Nothing, Key("train", "center_crop")),
    ("scale_lr", Nothing, Key("train", "scale_lr")),
    ("lr_warmup_steps", Number, Key("train", "lr_warmup_steps")),
    ("adam_beta1", Number, Key("train", "adam_beta1")),
    ("adam_beta2", Number, Key("train", "adam_beta2")),
    ("adam_weight_decay", Number, Key("train", "adam_weight_decay")),
    ("adam_epsilon", Number, Key("train", "adam_epsilon")),
    ("num_train_epochs", Number, Key("train", "num_train_epochs")),
    ("checkpointing_steps", Number, Key("train", "checkpointing_steps")),
    ("checkpoints_total_limit", Number, Key("train", "checkpoints_total_limit")),
    ("resume_from_checkpoint", Text, Key("train", "resume_from_checkpoint")),
    ("report_to", Text, By("train.report_to", reader::report_to)),
    ("dataloader_num_workers", Number, LeftOut("latents are computed once, before the first step")),
    ("allow_tf32 enable_xformers_memory_efficient_attention", Nothing, LeftOut(GPUS)),
    ("local_rank", Number, LeftOut("the coordinator gives out the ranks")),
    ("push_to_hub", Nothing, Refused("upload the output folder yourself: leave it out")),
    ("hub_token hub_model_id", Text, Refused("nothing is uploaded: leave it out")),
];

/// Options that diffusers' scripts for the UNet and its LoRAs have beside those.
pub(super) const DIFFUSERS_UNET: &[Row] = &[
    ("max_grad_norm", Number, Key("train", "max_grad_norm")),
    ("use_8bit_adam", Nothing, LeftOut(EIGHT_BITS)),
    ("image_interpolation_mode", Text, LeftOut(BICUBIC)),
    (
        "validation_epochs",
        Number,
        LeftOut(
            "pictures are drawn by steps and not by passes: every 100, or --set train.validation_steps=N",
        ),
    ),
];

pub(super) const GPUS: &str = "it is about GPUs";
pub(super) const BICUBIC: &str = "pictures are always scaled by Pillow's bicubic filter";
pub(super) const EIGHT_BITS: &str = "AdamW's moments are fp32 here; fewer bits only save memory";

/// What diffusers' scripts for the UNet and its LoRAs do without these options.
pub(super) const CENTER_CROP: &[(&str, &str)] = &[(
    "center_crop",
    "of a picture that is not square the script shows random squares; here it is the middle one",
)];
