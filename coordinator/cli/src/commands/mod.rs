//! The subcommands.

mod daemon_tools;
mod fetch;
mod follow;
mod keep;
mod pipeline;
mod queries;
mod run;
mod submit;
mod up;
mod watch;

use crate::{arguments::Command, error::Error, interrupt::Interrupts};

/// Runs a subcommand to its end.
pub async fn dispatch(command: Command, interrupts: &Interrupts) -> Result<(), Error> {
    match command {
        Command::Run(arguments) => Box::pin(run::run(arguments, interrupts)).await,
        Command::Up(arguments) => up::up(arguments, interrupts).await,
        Command::Submit(arguments) => Box::pin(submit::submit(arguments, interrupts)).await,
        Command::List(arguments) => queries::list(arguments).await,
        Command::Status(arguments) => queries::status(arguments).await,
        Command::Watch(arguments) => Box::pin(watch::watch(arguments, interrupts)).await,
        Command::Cancel(arguments) => queries::cancel(arguments).await,
        Command::Workers(arguments) => queries::workers(arguments).await,
        Command::Drain(arguments) => queries::drain(arguments, true).await,
        Command::Undrain(arguments) => queries::drain(arguments, false).await,
        Command::Fetch(arguments) => fetch::fetch(arguments).await,
        Command::Generate(arguments) => daemon_tools::generate(arguments),
        Command::Pipeline(arguments) => daemon_tools::pipeline(arguments),
        Command::Doctor(arguments) => daemon_tools::doctor(arguments),
    }
}

/// The noun as it stands behind this number.
fn plural(count: u32, noun: &str) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}
