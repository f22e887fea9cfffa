//! The command line of what users do with jobs that run or wait: `order`, `fork` and `sweep`.

use clap::Args;
use ringtune_shared::job::Setting;

use crate::{common_arguments::AskArguments, job_file::Label, references::JobReference};

/// Arguments of `order`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune order last --snapshot                     keep the state and what is learned now
  ringtune order last --prompt 'a <toy> on a beach'  pictures of it, with what is learned so far;
                                                     a language model goes on with it
  ringtune order last --learning-rate 5e-4           from the next step on
  ringtune order last --stop --after 800             step 800 is the last

An order is carried out between two steps, on all ranks at the same one. What decides bits (the
rate, the end) becomes part of the job, [orders] in its job.toml: run from its start, that job
comes to the same bits. The others leave files; `ringtune fetch` has them.")]
#[group(id = "what", required = true, multiple = false, args = ["learning_rate", "stop", "snapshot", "prompt"])]
pub struct OrderArguments {
    /// The job: its id, 4 or more digits of the id's beginning or end, its name, or `last`
    #[arg(value_name = "JOB")]
    pub job: JobReference,
    /// Another learning rate in the place of the job's own; warm-up and decay go on as they were
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub learning_rate: Option<f64>,
    /// End the job, with all its files
    #[arg(long)]
    pub stop: bool,
    /// Keep the state as a checkpoint, and what is learned as its kind's files of a step
    #[arg(long)]
    pub snapshot: bool,
    /// Draw pictures of this with what is learned so far; of a language model, a text that begins with it
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Not before this step is done [default: as soon as it may be]
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(i64).range(1..))]
    pub after: Option<i64>,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of `fork`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune order last --snapshot && ringtune fork last --learning-rate 5e-4
  ringtune fork dicoo --step 400 --set train.max_train_steps=2000 --set name=dicoo-longer

A fork is a new job that goes on from a checkpoint of this one. What decided the bits of that state
stays as it is; what does not, and what comes after it, can be given: the learning rate from there
on, the number of steps, what is drawn, saved and where. The job itself goes on.")]
pub struct ForkArguments {
    /// The job: its id, 4 or more digits of the id's beginning or end, its name, or `last`
    #[arg(value_name = "JOB")]
    pub job: JobReference,
    /// From the checkpoint after this step [default: the newest]
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u64).range(1..))]
    pub step: Option<u64>,
    /// The learning rate from there on, in the place of the job's own
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub learning_rate: Option<f64>,
    /// Another value for a key of the job, as TOML or a plain word (may be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// A label for the fork, which replaces one of the job (may be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    pub label: Vec<Label>,
    /// Follow the fork until it ends
    #[arg(long)]
    pub watch: bool,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of `sweep`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune submit sweep.toml && ringtune sweep last
  ringtune sweep last --output json | jq -r .best_job_id
  ringtune sweep 41b7eb6d --cancel

A job file with [sweep] makes one job for each combination of values:
  [sweep]
  train.learning_rate = [1e-4, 5e-4]
  train.seed = \"1..4\"
  halving = true

With `halving` the jobs wait for each other at rungs, without workers; the half with the lower
validation loss goes on, and the others end (OUT). VALIDATION is the validation loss of what the
job leaves: of the best state with select_best, of the last one otherwise; * marks the lowest.")]
pub struct SweepArguments {
    /// The sweep: its id, 4 or more digits of the id's beginning or end, its name, `last`, or one of its jobs
    #[arg(value_name = "SWEEP")]
    pub sweep: JobReference,
    /// Stop all of its jobs that have not ended
    #[arg(long)]
    pub cancel: bool,
    /// Kept with these jobs
    #[arg(long, value_name = "TEXT", default_value = "cancelled by the user", requires = "cancel")]
    pub reason: String,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}
