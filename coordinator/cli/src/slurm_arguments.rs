//! The command line of `slurm`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ringtune_shared::job::Setting;

use crate::{common_arguments::AskArguments, job_file::Label};

/// What to do on a cluster of Slurm.
#[derive(Debug, Subcommand)]
pub enum SlurmCommand {
    /// Run a job in an allocation of its own, and follow it to its end
    Run(SlurmRunArguments),
    /// Lend nodes to a coordinator that is there already: workers that leave when there is nothing to do
    Workers(SlurmWorkersArguments),
}

/// Arguments of `slurm run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune slurm run dicoo.toml
  ringtune slurm run dicoo.toml --nodes 4 -o out -- --partition cpu --account ada --time 8:00:00
  ringtune slurm run dicoo.toml -- --ntasks-per-node 2 --cpus-per-task 28    a worker a socket

The first node gets a coordinator, each task a worker. The script that is submitted is kept in the
output folder, ringtune.sbatch. Before the time limit the job keeps its state there and is
requeued; a node that dies costs no step. Ctrl-C stops watching: the job goes on.

Exit codes: as of run; 2 where Slurm would not take the job.")]
pub struct SlurmRunArguments {
    /// The job file
    #[arg(value_name = "JOB.toml")]
    pub job: PathBuf,
    /// Nodes to ask for; each gets a worker unless --ntasks-per-node says otherwise [default: the job's world_size]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub nodes: Option<u32>,
    /// Another value for a key of the job file, as TOML or a plain word: --set train.seed=7 (may be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// A label for the job, which replaces one in the job file's [queue] (may be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    pub label: Vec<Label>,
    /// Where to save the artifacts, and the state until the job is done: a folder that all nodes share
    /// [default: ringtune-out/NAME]
    #[arg(short = 'o', long = "output-dir", value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Options of sbatch, which override those of the script
    #[arg(last = true, value_name = "SBATCH OPTIONS")]
    pub sbatch: Vec<String>,
}

/// Arguments of `slurm workers`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune slurm workers --count 8 -- --partition cpu --time 12:00:00
  ringtune slurm workers --count 8 --idle 1800 --join-file token -- --constraint sapphirerapids

Prints the id of the job array. Each worker takes ranks of whichever job is queued, and leaves when
it has had none for a while; `scancel ID` sends all of them away after the steps they are at.")]
pub struct SlurmWorkersArguments {
    /// Workers: tasks of a job array
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub count: u16,
    /// Seconds without a rank after which a worker leaves
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=31_536_000))]
    pub idle: u32,
    /// A file with a worker's token that lets so many join, in a folder that all nodes share [default: a new one, for a day,
    /// which only an admin may make]
    #[arg(long, value_name = "FILE")]
    pub join_file: Option<PathBuf>,
    /// Settings of the workers (TOML), such as what jobs may read there, in a folder that all nodes share
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the script, the new token and the workers' logs go: a folder that all nodes share [default: ringtune-workers]
    #[arg(short = 'o', long = "output-dir", value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
    /// Options of sbatch, which override those of the script
    #[arg(last = true, value_name = "SBATCH OPTIONS")]
    pub sbatch: Vec<String>,
}
