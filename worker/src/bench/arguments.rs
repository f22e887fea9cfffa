//! The command line of `bench`.

use std::path::PathBuf;

use clap::{
    Args, Subcommand, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};

use crate::engine::{Attention, Precision};

/// What can be measured.
#[derive(Subcommand, Clone, Debug)]
pub enum BenchCommand {
    /// Time the training step of a model, and show where the time goes
    Step(StepArguments),
    /// Time training steps of a whole UNet at several sizes of a microbatch, as a table of images a second
    Unet(UnetTableArguments),
}

/// Times the training step of a model on this machine, as a worker takes it: the same library, threads and memory. Pictures and
/// words are made up.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Each step is timed, with its page faults. Beside it stands what the machine can do, measured in
turns with the steps: the library's best rate on a convolution and on a product. \"Of the roofline\"
is the time that the step's FLOP would take at the better of the two, over the time that it takes;
its FLOP are those of convolutions, linear layers and attention.\n\n\
    Examples:\n  \
    How long does a step take here?\n    \
    ringtune-worker bench step ./sd15\n  \
    Where does the time go? Open the trace in chrome://tracing or ui.perfetto.dev:\n    \
    ringtune-worker bench step ./sd15 --profile trace.json\n  \
    For a program, at another size and with one thread:\n    \
    ringtune-worker bench step ./sd15 --resolution 768 --threads 1 --output json\n\n\
    Exit codes: 0 measured, 1 failed, 2 wrong usage.")]
pub struct StepArguments {
    /// Model: a folder in diffusers layout, or one .safetensors file in the original layout
    #[arg(value_name = "MODEL")]
    pub checkpoint: PathBuf,
    /// Width and height of the pictures in pixels
    #[arg(long, default_value_t = 512, value_name = "PIXELS", allow_negative_numbers = true, value_parser = number(1..=4096))]
    pub resolution: u32,
    /// Samples of a step
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true, value_parser = number(1..=256))]
    pub batch: u32,
    /// Steps that are timed
    #[arg(long, default_value_t = 4, value_name = "N", allow_negative_numbers = true, value_parser = number(1..=1000))]
    pub steps: u32,
    /// Steps before them: the first lays the weights out
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true, value_parser = number(1..=100))]
    pub warm_up: u32,
    /// bf16, or fp32 [default: bf16 where the CPU has it]
    #[arg(long, value_name = "PRECISION", value_parser = precision_by_name())]
    pub precision: Option<Precision>,
    /// Compute threads [default: one a physical core]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number(1..=1024))]
    pub threads: Option<u32>,
    /// Encode so many pictures first, as a job does
    #[arg(long, default_value_t = 0, value_name = "N", allow_negative_numbers = true, value_parser = number(0..=1000))]
    pub encode: u32,
    /// Take each step with one concept and with so many, and compare
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true, value_parser = number(1..=64))]
    pub concepts: u32,
    /// Time the step of a LoRA of this rank beside the UNet's attention, with its update, instead of textual inversion's gradient
    #[arg(long, value_name = "RANK", allow_negative_numbers = true, value_parser = number(1..=1024), conflicts_with = "concepts")]
    pub lora: Option<u32>,
    /// Time the step of the whole UNet, with its update, from drawn weights
    #[arg(long, conflicts_with_all = ["concepts", "lora"])]
    pub unet: bool,
    /// How the UNet is trained.
    #[command(flatten)]
    pub how: UnetArguments,
    /// Record the timed steps: show where their time goes, and write a Chrome trace into this file
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// A table for people, or a JSON object a step, and one of all at the end
    #[arg(long, value_enum, default_value_t = BenchOutput::Text)]
    pub output: BenchOutput,
}

/// How a whole UNet is trained.
#[derive(Args, Clone, Debug, Default)]
pub struct UnetArguments {
    /// Of the whole UNet: keep an average of the weights (EMA)
    #[arg(long)]
    pub ema: bool,
    /// Of the whole UNet: keep what is between its segments alone, and compute the rest again
    #[arg(long)]
    pub gradient_checkpointing: bool,
    /// Of the whole UNet: how attention is computed
    #[arg(long, value_enum, default_value_t = BenchAttention::Fused)]
    pub attention: BenchAttention,
    /// Of the whole UNet: keep the optimizer's moments and the average in mapped files of this folder
    #[arg(long, value_name = "FOLDER")]
    pub offload: Option<PathBuf>,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BenchAttention {
    /// In tiles.
    #[default]
    Fused,
    /// With the weights of all heads at once.
    Plain,
    /// One head after the other.
    Sliced,
}

impl From<BenchAttention> for Attention {
    fn from(attention: BenchAttention) -> Self {
        match attention {
            BenchAttention::Fused => Self::Fused,
            BenchAttention::Plain => Self::Plain,
            BenchAttention::Sliced => Self::Sliced,
        }
    }
}

/// Times training steps of a whole UNet on this machine, from weights that are drawn: of the UNet the configuration alone is read.
/// Pictures and words are made up, and latents are given: VAE and data are not timed.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
A step is forward and backward pass of one microbatch and the update of all weights. A microbatch
that this machine has no memory for is not tried, and its row says what it would need.\n\n\
    Examples:\n  \
    How many images a second, and at which size?\n    \
    ringtune-worker bench unet ./sd2-base --microbatches 1,2,4,8 --ema\n  \
    What does attention cost without tiles?\n    \
    ringtune-worker bench unet ./sd2-base --attention plain\n\n\
    Exit codes: 0 measured, 1 failed, 2 wrong usage.")]
pub struct UnetTableArguments {
    /// Model: a folder in diffusers layout
    #[arg(value_name = "MODEL")]
    pub checkpoint: PathBuf,
    /// Samples of a microbatch, a row each
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4], value_name = "N,…", value_parser = number(1..=256))]
    pub microbatches: Vec<u32>,
    /// Width and height of the pictures in pixels
    #[arg(long, default_value_t = 512, value_name = "PIXELS", allow_negative_numbers = true, value_parser = number(1..=4096))]
    pub resolution: u32,
    /// Steps of each row that are timed
    #[arg(long, default_value_t = 2, value_name = "N", allow_negative_numbers = true, value_parser = number(1..=1000))]
    pub steps: u32,
    /// Steps of each row before them
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true, value_parser = number(1..=100))]
    pub warm_up: u32,
    /// bf16, or fp32 [default: bf16 where the CPU has it]
    #[arg(long, value_name = "PRECISION", value_parser = precision_by_name())]
    pub precision: Option<Precision>,
    /// Compute threads [default: one a physical core]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number(1..=1024))]
    pub threads: Option<u32>,
    /// How the UNet is trained.
    #[command(flatten)]
    pub how: UnetArguments,
    /// A table for people, or a JSON object a step and a row
    #[arg(long, value_enum, default_value_t = BenchOutput::Text)]
    pub output: BenchOutput,
}

impl UnetTableArguments {
    /// The steps of the first row.
    pub(super) fn step(&self) -> StepArguments {
        StepArguments {
            checkpoint: self.checkpoint.clone(),
            resolution: self.resolution,
            batch: self.microbatches.first().copied().unwrap_or(1),
            steps: self.steps,
            warm_up: self.warm_up,
            precision: self.precision,
            threads: self.threads,
            encode: 0,
            concepts: 1,
            lora: None,
            unet: true,
            how: self.how.clone(),
            profile: None,
            output: self.output,
        }
    }
}

/// How the outcome is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BenchOutput {
    /// A table.
    #[default]
    Text,
    /// JSON lines.
    Json,
}

fn number(range: std::ops::RangeInclusive<i64>) -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(range)
}

fn precision_by_name() -> impl TypedValueParser<Value = Precision> {
    PossibleValuesParser::new(["bf16", "fp32"])
        .map(|name| if name == "bf16" { Precision::Bf16 } else { Precision::Fp32 })
}
