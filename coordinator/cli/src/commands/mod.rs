//! The subcommands.

mod authority;
mod certificates;
mod checked_job;
mod class_pictures;
mod cloud;
mod daemon_tools;
mod debug;
mod destination;
mod documents;
mod fetch;
mod follow;
mod keep;
mod login;
mod lora;
mod model_weights;
mod orders;
mod pipeline;
mod queries;
mod reach;
mod recover;
mod resolve;
mod run;
mod slurm;
mod submit;
mod sweeps;
mod table;
mod tokens;
mod up;
mod verify;
mod watch;

use std::pin::Pin;

use ringtune_proto::v1;

use crate::{
    arguments::Command, error::Error, interrupt::Interrupts, references::short_id,
    slurm_arguments::SlurmCommand,
};

/// Runs a subcommand to its end. Those that have something to save, or to cancel, look at interrupts themselves; the others
/// end with the first.
pub async fn dispatch(command: Command, interrupts: &Interrupts) -> Result<(), Error> {
    let short: Pin<Box<dyn Future<Output = Result<(), Error>>>> = match command {
        Command::Run(arguments) => return Box::pin(run::run(arguments, interrupts)).await,
        Command::Recover(arguments) => Box::pin(recover::recover(arguments)),
        Command::Up(arguments) => return up::up(arguments, interrupts).await,
        Command::Slurm(SlurmCommand::Run(arguments)) => {
            return Box::pin(slurm::run(arguments, interrupts)).await;
        }
        Command::Slurm(SlurmCommand::Workers(arguments)) => Box::pin(slurm::workers(arguments)),
        Command::Cloud(command) => return Box::pin(cloud::cloud(command, interrupts)).await,
        Command::Submit(arguments) => return Box::pin(submit::submit(arguments, interrupts)).await,
        Command::Sweep(arguments) => Box::pin(sweeps::sweep(arguments)),
        Command::List(arguments) => Box::pin(queries::list(arguments)),
        Command::Status(arguments) => Box::pin(queries::status(arguments)),
        Command::Watch(arguments) => return Box::pin(watch::watch(arguments, interrupts)).await,
        Command::Verify(arguments) => return Box::pin(verify::verify(arguments, interrupts)).await,
        Command::Cancel(arguments) => Box::pin(queries::cancel(arguments)),
        Command::Pause(arguments) => Box::pin(queries::pause(arguments)),
        Command::Resume(arguments) => Box::pin(queries::resume(arguments)),
        Command::Order(arguments) => Box::pin(orders::order(arguments)),
        Command::Fork(arguments) => return Box::pin(orders::fork(arguments, interrupts)).await,
        Command::Queue(arguments) => Box::pin(orders::queue(arguments)),
        Command::Limits(arguments) => Box::pin(queries::limits(arguments)),
        Command::Delete(arguments) => Box::pin(queries::delete(arguments)),
        Command::Workers(arguments) => Box::pin(queries::workers(arguments)),
        Command::Drain(arguments) => Box::pin(queries::drain(arguments, true)),
        Command::Undrain(arguments) => Box::pin(queries::drain(arguments, false)),
        Command::Fetch(arguments) => Box::pin(fetch::fetch(arguments)),
        Command::Login(arguments) => return Box::pin(login::login(arguments, interrupts)).await,
        Command::Logout(arguments) => Box::pin(login::logout(arguments)),
        Command::Whoami(arguments) => Box::pin(login::whoami(arguments)),
        Command::Token(command) => Box::pin(tokens::token(command)),
        Command::Cert(command) => Box::pin(certificates::cert(command)),
        Command::Ca(command) => Box::pin(authority::ca(command)),
        Command::Generate(arguments) => return daemon_tools::generate(arguments),
        Command::Pipeline(arguments) => return daemon_tools::pipeline(arguments),
        Command::GenerateText(arguments) => return daemon_tools::generate_text(arguments),
        Command::PrepareText(arguments) => return daemon_tools::prepare_text(arguments),
        Command::Doctor(arguments) => return daemon_tools::doctor(arguments),
        Command::Lora(command) => Box::pin(lora::lora(command)),
        Command::Debug(command) => Box::pin(debug::debug(command)),
        Command::Complete(arguments) => Box::pin(documents::complete(arguments)),
        Command::Completions(arguments) => return documents::completions(&arguments),
        Command::Man(arguments) => return documents::man(&arguments),
    };
    tokio::select! {
        outcome = short => outcome,
        () = interrupts.first() => Err(Error::Interrupted(format!("stopped by {}", interrupts.cause()))),
    }
}

/// What a job is called: its name, or what it verifies.
fn title(job: &v1::Job) -> String {
    match &job.verification {
        Some(v1::Verification { job_id, first_step, last_step, .. }) => {
            format!("verify {} steps {first_step}-{last_step}", short_id(job_id))
        }
        None => job.name.clone(),
    }
}

/// The noun as it stands behind this number.
fn plural(count: u32, noun: &str) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}
