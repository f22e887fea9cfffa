//! The command line of `lora`.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{Args, Subcommand};
use ringtune_shared::lora::{Format, WeightedFile};

use crate::common_arguments::OutputArguments;

/// The subcommands of `lora`.
#[derive(Debug, Subcommand)]
pub enum LoraCommand {
    /// Say what a file holds: format, model, ranks, alphas, modules, and what its metadata tells
    Info(LoraInfoArguments),
    /// Write the same numbers with the names of another program
    Convert(LoraConvertArguments),
    /// Lower the rank, and keep as much of each product as it can hold
    Resize(LoraResizeArguments),
    /// Put LoRAs into a whole model, which any program loads then without them
    Merge(LoraMergeArguments),
}

/// Arguments of `lora info`.
#[derive(Debug, Args)]
pub struct LoraInfoArguments {
    /// A LoRA's .safetensors file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// How to print.
    #[command(flatten)]
    pub output: OutputArguments,
}

/// Arguments of `lora convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune lora convert style.safetensors --to kohya -o style-kohya.safetensors
  ringtune lora convert style-kohya.safetensors --to diffusers -o pytorch_lora_weights.safetensors

No number changes, and no alpha: kohya's files have it as a tensor, the others in their metadata.")]
pub struct LoraConvertArguments {
    /// A LoRA's .safetensors file, in any of the formats
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The format to write
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: Format,
    /// The file to write
    #[arg(short = 'o', long = "output-file", value_name = "OUT")]
    pub out: PathBuf,
}

/// Arguments of `lora resize`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ringtune lora resize style.safetensors --rank 16 -o style-16.safetensors

Modules whose rank is not higher stay as they are. Format, types and alpha / rank stay, too. The
last line says which share of its product the module kept that kept least: with less than about
90 %, pictures may differ visibly.")]
pub struct LoraResizeArguments {
    /// A LoRA's .safetensors file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The highest rank that a module may have
    #[arg(long, value_name = "N")]
    pub rank: NonZeroUsize,
    /// The file to write
    #[arg(short = 'o', long = "output-file", value_name = "OUT")]
    pub out: PathBuf,
}

/// Arguments of `lora merge`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune lora merge style.safetensors --model ./sd15 -o ./sd15-style
  ringtune lora merge style.safetensors:0.8 figure.safetensors --model ./sd15 -o ./sd15-both
  ringtune lora merge style.safetensors --model v1-5-pruned.safetensors -o v1-5-style.safetensors

Each layer becomes W + weight · alpha / rank · up · down, computed in fp32 and rounded once to the
type that the model is stored in. Weights are 1 unless they are given. Files that no LoRA changes
are hard links to the model's. Neither a daemon nor libtorch is needed.")]
pub struct LoraMergeArguments {
    /// LoRAs' .safetensors files, each with how strongly it counts; added in this order
    #[arg(required = true, value_name = "FILE[:WEIGHT]")]
    pub files: Vec<WeightedFile>,
    /// The model: a folder in diffusers layout, or a .safetensors file in the original layout
    #[arg(long, value_name = "MODEL")]
    pub model: PathBuf,
    /// Copy the model's other files instead of linking them (hard links, where they are on the same file system)
    #[arg(long)]
    pub copy: bool,
    /// The folder to make, or of a single file the file, which must not be there
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
}
