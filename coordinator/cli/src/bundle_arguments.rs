//! The command line of `debug`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::{common_arguments::CoordinatorArguments, references::JobReference};

/// The subcommands of `debug`.
#[derive(Debug, Subcommand)]
pub enum DebugCommand {
    /// Write versions, settings, logs, metrics and jobs into one file, without secrets
    Bundle(BundleArguments),
}

/// Arguments of `debug bundle`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune debug bundle                      prints the name of the file that it writes
  ringtune debug bundle --job JOB --since 3h -o report.tar.gz

It takes what it can get: without a coordinator, or without a login, what this machine knows.
README.txt in the file says what is in it, and what could not be had and why. Tokens, private
keys, passwords and the keys of clouds and hubs are replaced by [removed]; names, paths, addresses
and prompts stay.")]
pub struct BundleArguments {
    /// The file to write, which must not exist [default: ringtune-debug-TIME.tar.gz]
    #[arg(short = 'o', long = "output-file", value_name = "FILE.tar.gz")]
    pub file: Option<PathBuf>,
    /// A job to show in full, beside the 10 newest that failed or run (may be repeated)
    #[arg(long, value_name = "JOB")]
    pub job: Vec<JobReference>,
    /// How far back logs go, as in 3h or 2d
    #[arg(long, value_name = "TIME", default_value = "1d")]
    pub since: humantime::Duration,
    /// Leave logs out
    #[arg(long)]
    pub no_logs: bool,
    /// The folder of the daemons' settings files
    #[arg(long, value_name = "DIR", default_value = "/etc/ringtune")]
    pub settings_dir: PathBuf,
    /// A settings file elsewhere (may be repeated)
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Where the coordinator serves its page and its metrics [default: one port above --coordinator]
    #[arg(long, value_name = "URL")]
    pub http: Option<http::Uri>,
    /// Which coordinator.
    #[command(flatten)]
    pub coordinator: CoordinatorArguments,
}
