//! The command line of `generate-text`.

use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

use super::{Sampling, TextOptions};

const DEFAULT: TextOptions = TextOptions::DEFAULT;

/// Text from a language model.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Continues a prompt with a GPT-2, token by token, and prints prompt and text as they come. The
same seed gives the same text. Nothing but text goes to stdout; several texts have a line of
--------------- between them.

Without a prompt, the text is a document of its own: it follows <|endoftext|>. Where a text
becomes longer than the model's positions (1,024 tokens of GPT-2), the next token follows from the
last ones that fit, as in nanoGPT's generate; all of them are then computed for each token, which
takes much longer.

Examples:
  ringtune generate-text ./gpt2 --prompt 'The ring of machines' --max-new-tokens 50
  ringtune generate-text ./gpt2 --prompt-file start.txt --num-samples 3 \\
    --temperature 0.6 --top-p 0.9 --top-k 0
  ringtune generate-text hf://openai-community/gpt2 --prompt 'Once'
  echo -n 'Dear' | ringtune generate-text ./gpt2 --prompt-file - --temperature 0 \\
    --output json

Ctrl-C ends the text where it is, and a second one at once.

Exit codes: 0 the texts are there, also after Ctrl-C, 1 it failed, 2 wrong usage.")]
pub struct GenerateTextArguments {
    /// A GPT-2 as transformers saves it (config.json, model.safetensors, and the tokenizer's tokenizer.json, or vocab.json and
    /// merges.txt): a folder, hf://ORG/NAME@REVISION or s3://BUCKET/PREFIX
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Branch, tag or commit of an hf:// model [default: main]
    #[arg(long, default_value = "", hide_default_value = true, value_name = "REVISION")]
    pub revision: String,
    /// What the text begins with [default: nothing]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,
    /// The same in a file of UTF-8, whose last line feed counts too; - for stdin
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// How many texts to make
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub num_samples: u32,
    /// Tokens of a text behind its prompt, at most
    #[arg(long, default_value_t = DEFAULT.max_new_tokens as u32, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_new_tokens: u32,
    /// Less is surer, more is bolder; 0: always the most likely token
    #[arg(long, default_value_t = DEFAULT.sampling.temperature, value_name = "T", allow_negative_numbers = true)]
    pub temperature: f64,
    /// Draw from this many of the most likely tokens alone; 0: from all
    #[arg(long, default_value_t = DEFAULT.sampling.top_k, value_name = "K", allow_negative_numbers = true)]
    pub top_k: u32,
    /// Of those, draw from the fewest whose probabilities make up this share; above 0, 1: from all
    #[arg(long, default_value_t = DEFAULT.sampling.top_p, value_name = "P", allow_negative_numbers = true)]
    pub top_p: f64,
    /// Seed: the same seed gives the same text
    #[arg(long, default_value_t = DEFAULT.seed, value_name = "N", allow_negative_numbers = true)]
    pub seed: u64,
    /// Number format for matrix products and attention [default: bf16 where the processor has it]
    #[arg(long, value_enum, value_name = "PRECISION")]
    pub precision: Option<PrecisionName>,
    /// Compute threads [default: one a physical core]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Whether a text ends with the end-of-text token, or goes on behind it
    #[arg(long, default_value_t = DEFAULT.stop_at_end_of_text, action = ArgAction::Set, value_name = "BOOL")]
    pub stop_at_end_of_text: bool,
    /// What to print: text as it comes, or json for an object of each text in a line
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
}

/// In what is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionName {
    /// Half of the memory, and faster.
    Bf16,
    /// As it is stored, mostly.
    Fp32,
}

/// How texts are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl GenerateTextArguments {
    /// The options that decide the texts.
    pub(super) fn options(&self) -> TextOptions {
        let GenerateTextArguments { temperature, top_k, top_p, seed, stop_at_end_of_text, .. } = *self;
        let sampling = Sampling { temperature, top_k, top_p };
        TextOptions { sampling, seed, max_new_tokens: self.max_new_tokens as usize, stop_at_end_of_text }
    }
}
