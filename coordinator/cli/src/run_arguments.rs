//! The command line of the commands that start daemons on this machine.

use std::path::PathBuf;

use clap::Args;
use ringtune_shared::job::Setting;

use crate::{argument_values::parse_workers, common_arguments::OutputArguments, job_file::Label};

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune run dicoo.toml                    artifacts go to ringtune-out/<name of the job>
  ringtune run dicoo.toml --workers 2 -o out
  ringtune run dicoo.toml --print-job        only check the job and show it in full
  ringtune run dicoo.toml --set train.learning_rate=1e-3 --set name=dicoo-2
  ringtune run out/job.toml -o again         what an earlier run did, once more
  ringtune run --from-diffusers-args \"accelerate launch textual_inversion.py …\"

Ctrl-C cancels the job and saves what it has, and so does closing the terminal; a second Ctrl-C
exits at once. What a run that was killed had is kept: `ringtune recover` saves it.")]
pub struct RunArguments {
    /// The job file
    #[arg(value_name = "JOB.toml", required_unless_present = "from_diffusers_args")]
    pub job: Option<PathBuf>,
    /// Instead of a job file: a command line of diffusers' textual_inversion.py, train_text_to_image_lora.py,
    /// train_dreambooth_lora.py or train_text_to_image.py, of kohya's train_network.py or of MosaicML's benchmark.py, in
    /// quotes; --print-job shows it as a job file
    #[arg(long, value_name = "LINE", conflicts_with = "job", allow_hyphen_values = true)]
    pub from_diffusers_args: Option<String>,
    /// Another value for a key of the job file, as TOML or a plain word: --set train.seed=7 (may be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// A label for the job, which replaces one in the job file's [queue] (may be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    pub label: Vec<Label>,
    /// Workers to start; at least the job's min_world_size [default: the job's world_size]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_workers)]
    pub workers: Option<u32>,
    /// Where to save the artifacts [default: ringtune-out/NAME]
    #[arg(short = 'o', long = "output-dir", value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Print the job with every default filled in, and only check it: with the files and folders that it names
    #[arg(long)]
    pub print_job: bool,
    /// How to print.
    #[command(flatten)]
    pub output: OutputArguments,
}

/// Arguments of `recover`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each run's files go where it was to save them. Its folder is removed once all of them are there.
A job that was not done goes on from its newest checkpoint: run it again with the same -o, and with
--set train.resume_from_checkpoint=latest (gpt2.resume_from_checkpoint for a GPT-2).")]
pub struct RecoverArguments {
    /// The folder of one run, as `run` and `up` name it [default: all that are left]
    #[arg(value_name = "FOLDER")]
    pub folder: Option<PathBuf>,
    /// Where to save its artifacts [default: where the run was to save them]
    #[arg(short = 'o', long = "output-dir", value_name = "DIR", requires = "folder")]
    pub output_dir: Option<PathBuf>,
    /// How to print.
    #[command(flatten)]
    pub output: OutputArguments,
}

/// Arguments of `up`.
#[derive(Debug, Args)]
#[command(after_help = "\
The coordinator listens on 127.0.0.1:7070 (HTTP 7071), the first worker on 7080 and 7081;
a port that is taken is replaced by a free one, which is printed. Jobs and logs are kept
in ${XDG_STATE_HOME:-~/.local/state}/ringtune/up. A process that ends by itself is
started again; Ctrl-C stops everything.")]
pub struct UpArguments {
    /// Workers to start
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    pub workers: u32,
    /// How to print.
    #[command(flatten)]
    pub output: OutputArguments,
}
