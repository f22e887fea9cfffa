//! MosaicML's `benchmark.py` (diffusion-benchmark): the UNet of Stable Diffusion 2 on synthetic data.

use super::options::{
    Becomes::{By, Key, LeftOut, Noted, Refused, Sets},
    Row, Script,
    Takes::{Nothing, Number, Text},
    reader::{self, Place, Reader},
};

pub(super) const SCRIPT: Script = Script {
    name: "benchmark.py",
    kind: "unet_finetune",
    tables: &[OWN],
    defaults: &[
        ("model", "base", "\"hf://stabilityai/stable-diffusion-2-base\""),
        ("train", "seed", "17"),
        ("train", "learning_rate", "1e-4"),
        ("train", "adam_weight_decay", "1e-3"),
        ("train", "max_grad_norm", "0"),
        ("train", "min_timestep", "1"),
        ("train", "mixed_precision", "\"bf16\""),
        // It computes them in the step.
        ("train", "cache_latents", "false"),
    ],
    without: &[],
    finish,
};

const TRACKER: &str = "nothing is sent to a tracker; the job leaves TensorBoard's events";
const OWN_DATA: &str = "this is another form of data: leave it out, and name a folder, a bucket or a data set of the hub by \
    --set data.source=PLACE";

const OWN: &[Row] = &[
    ("model_name", Text, By("model.base", reader::base)),
    ("image_size", Number, Key("train", "resolution")),
    ("batch_size", Number, Noted("train.gradient_accumulation_steps")),
    ("device_train_microbatch_size", Number, Key("train", "train_batch_size")),
    ("use_synth_data", Nothing, Sets("data", "synthetic_samples", "100000")),
    ("use_ema", Nothing, Key("train", "use_ema")),
    ("remote", Text, Refused(OWN_DATA)),
    ("local", Text, LeftOut("what is fetched is kept in the worker's cache")),
    ("wandb_name wandb_project", Text, LeftOut(TRACKER)),
];

/// The script's default.
const BATCH: u64 = 2048;
/// Of the synthetic data.
const SAMPLES: u64 = 100_000;
const PASSES: u64 = 5;
const MICROBATCH: Place = ("train", "train_batch_size");

/// A step's samples are divided among the ranks, and there into microbatches.
fn finish(reader: &mut Reader) {
    // 1. The average's rate.
    if reader.is_given("use_ema") {
        reader.set(("train", "ema_half_life"), "1000".to_owned());
    }
    // 2. The batch.
    let whole =
        |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok()).filter(|number| *number > 0);
    let batch = match reader.text("batch_size") {
        None => BATCH,
        given => match whole(given) {
            Some(batch) => batch,
            None => return reader.refuse("", "--batch_size: allowed: a whole number above 0".to_owned()),
        },
    };
    let Some(microbatch) = whole(reader.value(MICROBATCH)) else {
        let problem = "--device_train_microbatch_size is missing: there it is found by trying; say how many samples a worker \
                       computes at a time";
        return reader.refuse("train.train_batch_size", problem.to_owned());
    };
    let ranks = whole(reader.value(("cluster", "world_size"))).unwrap_or(1);
    let together = ranks.saturating_mul(microbatch);
    if !batch.is_multiple_of(together) {
        let problem = format!(
            "--batch_size: {batch} samples are no whole number of microbatches of {microbatch} on each of {ranks} ranks"
        );
        return reader.refuse("", problem);
    }
    reader.set(("train", "gradient_accumulation_steps"), (batch / together).to_string());
    // 3. The passes.
    if reader.is_given("use_synth_data") {
        reader.set_default(("train", "max_train_steps"), &(PASSES * (SAMPLES / batch).max(1)).to_string());
    }
    reader.remark("fp16 there is bf16 here".to_owned());
}
