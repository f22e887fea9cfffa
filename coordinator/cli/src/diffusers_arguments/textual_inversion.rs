//! diffusers' `examples/textual_inversion/textual_inversion.py`.

use super::options::{
    Becomes::{Key, Refused},
    DIFFUSERS, EVERYWHERE, NO_CHECKPOINTING, PREVIEWS, Row, Script,
    Takes::{Nothing, Number, Text},
    reader::Reader,
};

pub(super) const SCRIPT: Script = Script {
    name: "textual_inversion.py",
    kind: "textual_inversion",
    tables: &[EVERYWHERE, DIFFUSERS, NO_CHECKPOINTING, PREVIEWS, OWN],
    defaults: &[],
    without: &[],
    finish: let_steps_count_more_than_passes,
};

const OWN: &[Row] = &[
    ("tokenizer_name", Text, Key("model", "tokenizer")),
    ("train_data_dir", Text, Key("data", "images")),
    ("placeholder_token", Text, Key("train", "placeholder_token")),
    ("initializer_token", Text, Key("train", "initializer_token")),
    ("learnable_property", Text, Key("train", "learnable_property")),
    ("num_vectors", Number, Key("train", "num_vectors")),
    ("lr_num_cycles", Number, Key("train", "lr_num_cycles")),
    ("save_steps", Number, Key("train", "save_steps")),
    ("repeats", Number, Key("train", "repeats")),
    ("save_as_full_pipeline", Nothing, Key("train", "save_as_full_pipeline")),
    ("validation_steps", Number, Key("train", "validation_steps")),
    ("no_safe_serialization", Nothing, Refused("pickle files are never written: leave it out")),
    (
        "validation_epochs",
        Number,
        Refused("deprecated there: give --validation_steps, which counts optimizer steps"),
    ),
];

/// The script's default.
const MAX_TRAIN_STEPS: &str = "5000";

/// The script's `max_train_steps` has a default, so that its `num_train_epochs` never counts.
fn let_steps_count_more_than_passes(reader: &mut Reader) {
    let steps = ("train", "max_train_steps");
    if reader.has(("train", "num_train_epochs")) && !reader.has(steps) {
        reader.set(steps, MAX_TRAIN_STEPS.to_owned());
        reader.remark(format!(
            "--num_train_epochs: as in the script, --max_train_steps takes precedence, and is {MAX_TRAIN_STEPS} if it is \
             not given; for passes over the pictures, take max_train_steps out of the job file"
        ));
    }
}
