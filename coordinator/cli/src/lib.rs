//! The `ringtune` command: a client of the coordinator, plus `run` and `up`, which start the daemons
//! on this machine.
//!
//! Data goes to stdout, progress and errors to stderr. Exit codes: 0 success, 1 the job failed, 2 the
//! command line, the job file or the credentials cannot be used or do not allow it, 3 the coordinator cannot be reached,
//! 4 a signal ended a command that followed a job, which goes on.

use std::{process::ExitCode, time::Duration};

use clap::Parser as _;

pub mod access_arguments;
pub mod access_objects;
pub mod argument_values;
pub mod arguments;
pub mod bundle;
pub mod bundle_arguments;
pub mod checkpoints;
pub mod client;
pub mod cloud_arguments;
pub mod cloud_tool;
pub mod cluster;
pub mod commands;
pub mod common_arguments;
pub mod credentials;
pub mod diffusers_arguments;
pub mod embeddings;
pub mod error;
mod help;
pub mod images;
pub mod interrupt;
pub mod job_file;
pub mod kubernetes;
pub mod lora_arguments;
pub mod objects;
pub mod order_arguments;
pub mod output;
pub mod progress;
pub mod references;
pub mod run_arguments;
pub mod slurm_arguments;
pub mod sources;
pub mod sweep_objects;
pub mod timing_objects;
pub mod traces;

use arguments::Arguments;
use error::Error;
use interrupt::Interrupts;

/// Runs the command of this process's command line.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // clap's own exit code of a wrong command line is 2; of --help and --version 0.
        Err(error) => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            return if error.print().is_ok() { ExitCode::from(code) } else { ExitCode::FAILURE };
        }
    };
    match run_to_end(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            // When stderr is gone too there is nobody left to tell.
            output::remark(&format!("error: {error}"));
            ExitCode::from(error.exit_status() as u8)
        }
    }
}

fn run_to_end(arguments: Arguments) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let interrupts = Interrupts::install()?;
        tokio::select! {
            outcome = commands::dispatch(arguments.command, &interrupts) => outcome,
            // Dropping the command's future kills the daemons it started.
            () = interrupts.second() => Err(Error::Interrupted("stopped at once, as asked".to_owned())),
        }
    });
    runtime.shutdown_timeout(Duration::from_millis(500));
    outcome
}
