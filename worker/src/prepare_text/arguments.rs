//! The command line of `prepare-text`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Files of tokens from files of text.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Makes train.bin and val.bin, as nanoGPT's data/openwebtext/prepare.py makes them: the same
documents and options give the same bytes. Tokens are 16 bits each, little-endian; each document
ends with <|endoftext|>. meta.json beside them says how many there are, of which vocabulary, and
the SHA-256 of both files.

A document is a .txt file, a line of a .jsonl file, or a row of a .parquet file. Folders are
searched in the order of their files' paths.

Examples:
  ringtune prepare-text ./openwebtext --tokenizer ./gpt2 -o data
  ringtune prepare-text a.jsonl b.jsonl --text-column body --tokenizer ./gpt2 \\
    --skip-broken -o data
  ringtune prepare-text s3://texts/openwebtext --tokenizer ./gpt2 -o s3://texts/tokens

Ctrl-C stops it, and so may anything else: the same command goes on with what is missing. Until
its end about twice the room of both files is taken in the output folder. Of s3:// the variables
AWS_* say where it is and who asks.

Exit codes: 0 all is written, 1 it failed or was stopped, 2 wrong usage.")]
pub struct PrepareTextArguments {
    /// Files and folders of .txt, .jsonl and .parquet, also s3://BUCKET/PREFIX
    #[arg(required = true, value_name = "INPUT")]
    pub inputs: Vec<String>,
    /// Where train.bin, val.bin and meta.json go: a folder, which is made if need be, or s3://BUCKET/PREFIX. Files of these
    /// names are replaced
    #[arg(short = 'o', long = "output-dir", value_name = "DIR")]
    pub output_dir: String,
    /// The folder of the model's tokenizer: tokenizer.json, or vocab.json and merges.txt, of GPT-2's kind
    #[arg(long, value_name = "DIR")]
    pub tokenizer: PathBuf,
    /// Which key of .jsonl lines and which column of .parquet files has the texts
    #[arg(long, default_value = "text", value_name = "NAME")]
    pub text_column: String,
    /// The share of the documents that goes to val.bin, above 0 and below 1, rounded up to whole documents
    #[arg(long, default_value_t = 0.0005, value_name = "SHARE", allow_negative_numbers = true)]
    pub val_fraction: f64,
    /// Seed for the order of the documents, as in NumPy
    #[arg(long, default_value_t = 2357, value_name = "N", allow_negative_numbers = true)]
    pub seed: u64,
    /// Threads that make tokens [default: one a core]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Leave out documents that cannot be read and say how many they were, instead of ending at the first
    #[arg(long)]
    pub skip_broken: bool,
    /// What to print at the end: text, or json for an object in one line
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
}

/// How the result is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object.
    Json,
}
