//! The subcommands.

mod authority;
mod certificates;
mod daemon_tools;
mod debug;
mod documents;
mod fetch;
mod follow;
mod keep;
mod login;
mod pipeline;
mod queries;
mod reach;
mod run;
mod submit;
mod table;
mod tokens;
mod up;
mod verify;
mod watch;

use ringtune_proto::v1;

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
        Command::Verify(arguments) => Box::pin(verify::verify(arguments, interrupts)).await,
        Command::Cancel(arguments) => queries::cancel(arguments).await,
        Command::Delete(arguments) => queries::delete(arguments).await,
        Command::Workers(arguments) => queries::workers(arguments).await,
        Command::Drain(arguments) => queries::drain(arguments, true).await,
        Command::Undrain(arguments) => queries::drain(arguments, false).await,
        Command::Fetch(arguments) => fetch::fetch(arguments).await,
        Command::Login(arguments) => Box::pin(login::login(arguments, interrupts)).await,
        Command::Logout(arguments) => login::logout(arguments).await,
        Command::Whoami(arguments) => login::whoami(arguments).await,
        Command::Token(command) => Box::pin(tokens::token(command)).await,
        Command::Cert(command) => Box::pin(certificates::cert(command)).await,
        Command::Ca(command) => Box::pin(authority::ca(command)).await,
        Command::Generate(arguments) => daemon_tools::generate(arguments),
        Command::Pipeline(arguments) => daemon_tools::pipeline(arguments),
        Command::GenerateText(arguments) => daemon_tools::generate_text(arguments),
        Command::PrepareText(arguments) => daemon_tools::prepare_text(arguments),
        Command::Doctor(arguments) => daemon_tools::doctor(arguments),
        Command::Debug(command) => Box::pin(debug::debug(command)).await,
        Command::Completions(arguments) => documents::completions(&arguments),
        Command::Man(arguments) => documents::man(&arguments),
    }
}

/// What a job is called: its name, or what it verifies.
fn title(job: &v1::Job) -> String {
    match &job.verification {
        Some(v1::Verification { job_id, first_step, last_step, .. }) => {
            format!("verify {job_id} steps {first_step}-{last_step}")
        }
        None => job.name.clone(),
    }
}

/// The noun as it stands behind this number.
fn plural(count: u32, noun: &str) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}
