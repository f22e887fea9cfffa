//! diffusers' `examples/dreambooth/train_dreambooth_lora.py`.

use super::options::{
    Becomes::{By, Key, KeyBeside, LeftOut, Only, Refused},
    CENTER_CROP, DIFFUSERS, DIFFUSERS_UNET, EVERYWHERE, NO_CHECKPOINTING, PREVIEWS, Row, Script,
    Takes::{Nothing, Number, Text, Words},
    reader::Reader,
};

pub(super) const SCRIPT: Script = Script {
    name: "train_dreambooth_lora.py",
    kind: "lora",
    tables: &[EVERYWHERE, DIFFUSERS, DIFFUSERS_UNET, NO_CHECKPOINTING, PREVIEWS, OWN],
    defaults: &[
        ("train", "train_batch_size", "4"),
        ("train", "learning_rate", "5e-4"),
        ("train", "center_crop", "true"),
    ],
    without: CENTER_CROP,
    finish: show_each_picture_once_at_least,
};

const PRIOR: &str = "with_prior_preservation";
const OTHER_MODELS: &str = "it is about DeepFloyd IF: leave it out";

const OWN: &[Row] = &[
    ("rank", Number, Key("lora", "rank")),
    ("tokenizer_name", Text, Key("model", "tokenizer")),
    ("instance_data_dir", Text, Key("data", "images")),
    ("instance_prompt", Text, Key("data", "instance_prompt")),
    (PRIOR, Nothing, By("", needs_a_class)),
    ("class_data_dir", Text, KeyBeside("data", "class_images", PRIOR)),
    ("class_prompt", Text, KeyBeside("data", "class_prompt", PRIOR)),
    ("num_class_images", Number, KeyBeside("train", "num_class_images", PRIOR)),
    ("prior_loss_weight", Number, KeyBeside("train", "prior_loss_weight", PRIOR)),
    (
        "sample_batch_size",
        Number,
        LeftOut("how many pictures of the class are drawn at a time changes none of them"),
    ),
    ("prior_generation_precision", Text, LeftOut("pictures of the class are drawn in the job's precision")),
    ("train_text_encoder", Nothing, Key("train", "train_text_encoder")),
    ("lora_dropout", Number, Key("lora", "dropout")),
    ("lr_num_cycles", Number, Key("train", "lr_num_cycles")),
    ("lr_power", Number, Only(&["1"], "the schedule polynomial is a straight line: leave it out")),
    (
        "pre_compute_text_embeddings",
        Nothing,
        LeftOut("embeddings of the prompt are the same whenever they are computed"),
    ),
    (
        "tokenizer_max_length",
        Number,
        Only(&["77"], "Stable Diffusion's prompts have 77 tokens: leave it out"),
    ),
    ("text_encoder_use_attention_mask", Nothing, Refused(OTHER_MODELS)),
    ("validation_images", Words, Refused(OTHER_MODELS)),
    ("class_labels_conditioning", Text, Refused(OTHER_MODELS)),
];

/// As in the script.
fn needs_a_class(reader: &mut Reader, option: &str, _: &[String]) {
    for other in ["class_data_dir", "class_prompt"] {
        if !reader.is_given(other) {
            reader.refuse("", format!("{option} needs --{other}"));
        }
    }
}

/// One pass is the script's default, where it has no number of steps.
fn show_each_picture_once_at_least(reader: &mut Reader) {
    if !reader.has(("train", "max_train_steps")) {
        reader.set_default(("train", "num_train_epochs"), "1");
    }
}
