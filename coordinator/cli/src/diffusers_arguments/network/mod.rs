//! kohya's `train_network.py` (sd-scripts): what its options mean together.
//!
//! It learns adapters of the text encoder too, unless it is told not to. It takes the precision from its own option alone,
//! not from the launcher's.

pub(super) mod tables;

use self::tables::{
    CAPTION, DATA, LOSS, MACHINE, MODEL, NETWORK, NETWORK_ARGS, OPTIMIZER_ARGS, OUTPUT, STEPS,
};
use super::{
    network_folders,
    options::{
        EIGHT_BITS, EVERYWHERE, NO_CHECKPOINTING, Script,
        reader::{Place, Reader, number},
    },
};

pub(super) const SCRIPT: Script = Script {
    name: "train_network.py",
    kind: "lora",
    tables: &[EVERYWHERE, NO_CHECKPOINTING, MODEL, DATA, CAPTION, NETWORK, STEPS, LOSS, OUTPUT, MACHINE],
    defaults: &[
        ("model", "prediction_type", "\"epsilon\""),
        ("train", "learning_rate", LEARNING_RATE),
        ("train", "train_batch_size", "1"),
        ("train", "lr_warmup_steps", "0"),
        // Only the last file.
        ("train", "save_steps", "0"),
        ("lora", "alpha", "1"),
        ("lora", "targets", "\"all\""),
    ],
    without: &[],
    finish,
};

const LEARNING_RATE: &str = "2e-6";
const MAX_TRAIN_STEPS: &str = "1600";

const RATE: Place = ("train", "learning_rate");
const STEPS_KEY: Place = ("train", "max_train_steps");

fn finish(reader: &mut Reader) {
    network_folders::pictures(reader);
    count_passes(reader);
    choose_rates(reader);
    if !reader.has(("train", "enable_bucket")) {
        reader.set_default(("train", "center_crop"), "true");
    }
    if reader.has(("lora", "conv_rank")) {
        reader.set_default(("lora", "conv_alpha"), "1");
    } else if reader.take_back(("lora", "conv_alpha")) {
        reader.remark("--network_args conv_alpha is left out: it has no effect without conv_dim".to_owned());
    }
    if !reader.is_given("mixed_precision") && reader.take_back(("train", "mixed_precision")) {
        reader.remark(
            "the launcher's --mixed_precision is left out: as there, the script's own option alone counts"
                .to_owned(),
        );
    }
}

/// A number of passes takes precedence over one of steps.
fn count_passes(reader: &mut Reader) {
    if !reader.has(("train", "num_train_epochs")) {
        reader.set_default(STEPS_KEY, MAX_TRAIN_STEPS);
    } else if reader.take_back(STEPS_KEY) {
        reader.remark(
            "--max_train_steps is left out: as in the script, --max_train_epochs takes precedence".to_owned(),
        );
    }
}

/// A part without a rate of its own has the common one; the text encoder is not trained with a rate of 0.
fn choose_rates(reader: &mut Reader) {
    let common = reader.value(RATE).unwrap_or(LEARNING_RATE).to_owned();
    if let Some(rate) = reader.text("unet_lr").and_then(number) {
        if rate.parse() == Ok(0.0) {
            reader.refuse("", "--unet_lr: got 0; the UNet is always trained".to_owned());
        }
        reader.set(RATE, rate);
    }
    let own = reader.words("text_encoder_lr").map(<[String]>::to_vec);
    if reader.is_given("network_train_unet_only") {
        if own.is_some() {
            reader.remark(
                "--text_encoder_lr is left out: it has no effect beside --network_train_unet_only".to_owned(),
            );
        }
        return;
    }
    let rate = match own.as_deref() {
        None | Some([]) => common,
        Some([word]) => match number(word) {
            Some(rate) => rate,
            None => {
                let key = "train.text_encoder_learning_rate";
                return reader.refuse(key, format!("--text_encoder_lr: {word:?} is not a number"));
            }
        },
        Some(_) => {
            let problem = "--text_encoder_lr: got several; Stable Diffusion 1 and 2 have one text encoder";
            return reader.refuse("train.text_encoder_learning_rate", problem.to_owned());
        }
    };
    if rate.parse() == Ok(0.0) {
        return;
    }
    reader.set_default(("train", "train_text_encoder"), "true");
    if reader.value(RATE).unwrap_or(LEARNING_RATE) != rate {
        reader.set(("train", "text_encoder_learning_rate"), rate);
    }
}

/// `512` or `512,512`.
pub(super) fn resolution(reader: &mut Reader, shown: &str, words: &[String]) {
    for word in words {
        let sides: Option<Vec<String>> = word.split(',').map(|side| number(side.trim())).collect();
        match sides.as_deref() {
            Some([side]) => reader.set(("train", "resolution"), side.clone()),
            Some([width, height]) if width == height => {
                reader.set(("train", "resolution"), width.clone());
            }
            Some([_, _]) => {
                let problem =
                    format!("{shown}: got {word:?}; allowed: squares, or --enable_bucket for others");
                reader.refuse("train.resolution", problem);
            }
            _ => reader.refuse(
                "train.resolution",
                format!(
                    "{shown}: got {word:?}; allowed: a number, as in 512, or the same twice, as in 512,512"
                ),
            ),
        }
    }
}

/// A number of steps, or a share of all of them: `0.05` or `5%`.
pub(super) fn warmup(reader: &mut Reader, shown: &str, words: &[String]) {
    const KEY: &str = "train.lr_warmup_steps";
    for word in words {
        let share = match word.strip_suffix('%') {
            Some(percent) => percent.parse::<f64>().map(|percent| percent / 100.0),
            None => word.parse(),
        };
        let steps = reader.text("max_train_steps").unwrap_or(MAX_TRAIN_STEPS).parse::<f64>();
        match (share, steps) {
            (Err(_), _) => reader.refuse(KEY, format!("{shown}: {word:?} is not a number")),
            (Ok(share), _) if share == 0.0 || (share >= 1.0 && !word.ends_with('%')) => {
                let steps = number(word).unwrap_or_default();
                reader.set(("train", "lr_warmup_steps"), steps);
            }
            (Ok(_), _) if reader.is_given("max_train_epochs") => reader.refuse(
                KEY,
                format!("{shown}: got {word:?}, a share of steps that are not known before the pictures are counted: give a number of steps"),
            ),
            (Ok(share), Ok(steps)) => {
                reader.set(("train", "lr_warmup_steps"), format!("{:.0}", (share * steps).floor()));
            }
            // Told already.
            (Ok(_), Err(_)) => {}
        }
    }
}

pub(super) fn network_args(reader: &mut Reader, shown: &str, words: &[String]) {
    reader.pairs(shown, NETWORK_ARGS, words);
}

pub(super) fn optimizer_args(reader: &mut Reader, shown: &str, words: &[String]) {
    reader.pairs(shown, OPTIMIZER_ARGS, words);
}

/// As in Python: `0.9,0.99`, or `(0.9, 0.99)`.
pub(super) fn betas(reader: &mut Reader, shown: &str, words: &[String]) {
    for word in words {
        let inner = word.trim().trim_start_matches(['(', '[']).trim_end_matches([')', ']']);
        let betas: Option<Vec<String>> = inner.split(',').map(|beta| number(beta.trim())).collect();
        match betas.as_deref() {
            Some([first, second]) => {
                reader.set(("train", "adam_beta1"), first.clone());
                reader.set(("train", "adam_beta2"), second.clone());
            }
            _ => reader.refuse("", format!("{shown}: got {word:?}; allowed: two numbers, as in 0.9,0.999")),
        }
    }
}

/// In whatever case, as there.
pub(super) fn optimizer(reader: &mut Reader, shown: &str, words: &[String]) {
    for word in words {
        match word.to_lowercase().as_str() {
            "" | "adamw" => {}
            "adamw8bit" | "pagedadamw" | "pagedadamw8bit" | "pagedadamw32bit" => {
                reader.remark(format!("{shown}: AdamW; {EIGHT_BITS}"));
            }
            _ => reader.refuse(
                "",
                format!(
                    "{shown}: got {word:?}; allowed: AdamW, and rates that are made for it: leave it out"
                ),
            ),
        }
    }
}
