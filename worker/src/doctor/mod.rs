//! `doctor`: is this machine fit to be a worker? And with a job: what would it do?
//!
//! `machine` and `addresses` judge what was read below a root, `cluster` has what only others can tell, `neighbours`
//! measures the ways to other workers.

mod addresses;
mod checks;
mod cloud;
mod cluster;
mod job;
mod machine;
mod neighbours;
mod network;

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use comfy_table::{Table, presets::NOTHING};
use ringtune_shared::{
    config::{ConfigError, Sources, load, process_environment},
    daemon::{arguments::given, settings::SettingsError},
};
use serde::Serialize;

use crate::{
    capabilities::numerics_class, coordinator::CoordinatorAddress, engine::StartEngine, node::Node,
    settings::Settings,
};

pub use checks::{Check, Verdict};
pub use job::JobArguments;

/// Says whether this machine is fit to be a worker: processor, memory, limits, clock, addresses, libtorch, and the way to
/// a coordinator. With
/// a job file: what that job would train, as a dry run.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Exit codes: 0 fit, or the job can start (warnings included); 1 not; 2 wrong usage.")]
pub struct DoctorArguments {
    /// The dry run
    #[command(flatten)]
    pub job: JobArguments,
    /// A coordinator that should be reachable from here, or has the job's pictures
    #[arg(long, value_name = "URL")]
    pub coordinator: Option<String>,
    /// The worker's state folder: as whom it joined a secured cluster [default: as the settings say]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Look at it as a worker that is started with --insecure
    #[arg(long)]
    pub insecure: bool,
    /// The worker's settings file: says what jobs may reach on a worker with these settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the worker listens, which decides what jobs may reach by itself [default: as the settings say]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Other workers, to which the way is measured: latency, bandwidth, clocks, packet sizes, and the way back
    #[arg(
        long,
        value_name = "HOST[:PORT],...",
        value_delimiter = ',',
        value_parser = neighbours::parse,
        conflicts_with = "job"
    )]
    pub ring: Vec<neighbours::Neighbour>,
    /// A table for people, or one JSON object
    #[arg(long, value_enum, default_value_t = DoctorOutput::Text)]
    pub output: DoctorOutput,
}

/// How the outcome is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DoctorOutput {
    /// A table.
    #[default]
    #[value(alias = "human")]
    Text,
    /// One JSON object on one line.
    Json,
}

/// Why nothing is said.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The worker's settings cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A worker would not start with them.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Too many neighbours, or one twice.
    #[error(transparent)]
    Neighbours(#[from] neighbours::Wrong),
    /// stdout cannot be written.
    #[error("cannot write to stdout: {0}")]
    Output(#[from] io::Error),
}

impl Error {
    /// Whether a flag or a setting is wrong: exit code 2.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::Output(_))
    }
}

impl DoctorArguments {
    /// The settings of a worker that is started beside.
    fn settings(&self) -> Result<Settings, Error> {
        let settings: Settings = load(Sources {
            file: self.config.clone(),
            environment: process_environment()?,
            overrides: given([
                ("grpc.listen", self.listen.clone()),
                ("coordinator.url", self.coordinator.clone()),
                ("storage.state_dir", self.state_dir.as_ref().map(|folder| folder.display().to_string())),
                ("security.insecure", self.insecure.then(|| "true".to_owned())),
            ]),
        })?;
        settings.access.problems().into_iter().next().map_or(Ok(()), Err)?;
        settings.security.check()?;
        settings.coordinator_address()?;
        settings.cloud.problem().map_or(Ok(()), Err)?;
        Ok(settings)
    }
}

#[derive(Serialize)]
struct Report<'a> {
    fit: bool,
    checks: &'a [Check],
}

/// Makes all checks and writes the outcome to stdout. Returns whether the machine is fit, or the job can start.
///
/// # Errors
/// See [`Error`].
pub async fn run(arguments: &DoctorArguments, start: StartEngine) -> Result<bool, Error> {
    let settings = arguments.settings()?;
    neighbours::check(&arguments.ring)?;
    let standing = network::standing(&settings).await;
    if let Some(file) = &arguments.job.job {
        let coordinator = match &arguments.coordinator {
            Some(_) => Some(settings.coordinator_address()?.to_string()),
            None => None,
        };
        let there =
            job::There { settings: &settings, coordinator: coordinator.as_deref(), trust: standing.trust() };
        let report = Box::pin(job::examine(file, &arguments.job, there, start)).await;
        let text = match arguments.output {
            DoctorOutput::Json => report.to_json().map_err(io::Error::other)?,
            DoctorOutput::Text => job::render(&report),
        };
        writeln!(io::stdout(), "{text}")?;
        return Ok(report.can_start());
    }
    let root = Path::new("/");
    let mut checks = checks::of_node();
    checks.extend(machine::of_machine(root, &settings));
    let lent = cloud::machine(&settings.cloud).await;
    checks.extend(lent.iter().map(|machine| cloud::judge(&settings.cloud, machine)));
    let engine = checks::identity(start).await;
    checks.extend(checks::of_engine(&engine));
    checks.extend(checks::of_access(&settings));
    checks.extend(network::of_security(&settings, &standing));
    checks.extend(addresses::of_addresses(root, &settings, arguments.coordinator.is_some()).await);
    if arguments.coordinator.is_some() {
        checks.extend(of_cluster(&settings.coordinator_address()?, &standing).await);
    }
    if !arguments.ring.is_empty() {
        let class = engine.ok().map(|engine| numerics_class(&Node::detect(), &engine));
        let zone = lent.and_then(Result::ok).map(|machine| machine.zone).unwrap_or_default();
        let here = neighbours::Here { settings: &settings, trust: standing.trust(), class, zone };
        checks.extend(neighbours::of_ring(&arguments.ring, here).await);
    }
    let fit = checks.iter().all(|check| check.verdict != Verdict::Bad);
    let text = match arguments.output {
        DoctorOutput::Json => {
            serde_json::to_string(&Report { fit, checks: &checks }).map_err(io::Error::other)?
        }
        DoctorOutput::Text => table(fit, &checks),
    };
    writeln!(io::stdout(), "{text}")?;
    Ok(fit)
}

/// The way to the coordinator, and what it says of itself and of others.
async fn of_cluster(address: &CoordinatorAddress, standing: &network::Standing) -> Vec<Check> {
    let dialled = network::dial(address, standing.trust()).await;
    let channel = dialled.as_ref().ok().cloned();
    let mut checks = vec![network::of_coordinator(address, standing.trust(), dialled).await];
    if let Some(channel) = channel {
        checks.push(cluster::of_clocks(channel.clone()).await);
        checks.push(cluster::of_workers(channel, &Node::detect()).await);
    }
    checks
}

fn table(fit: bool, checks: &[Check]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    if !io::stdout().is_terminal() {
        table.force_no_tty();
    }
    for check in checks {
        let found = match &check.neighbour {
            None => check.found.clone(),
            Some(neighbour) => format!("{neighbour}: {}", check.found),
        };
        table.add_row([check.verdict.word(), check.name, found.as_str()]);
        if !check.advice.is_empty() {
            table.add_row(["", "", check.advice.as_str()]);
        }
    }
    let outcome =
        if fit { "This machine is fit to be a worker." } else { "This machine is not fit to be a worker." };
    format!("{table}\n\n{outcome}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outputs_are_called_as_everywhere_else() {
        let named = |word| DoctorOutput::from_str(word, false);
        assert_eq!((named("text"), named("json")), (Ok(DoctorOutput::Text), Ok(DoctorOutput::Json)));
        assert_eq!(named("human"), Ok(DoctorOutput::Text), "scripts that say so go on working");
        assert!(named("table").is_err());
    }

    #[test]
    fn the_table_shows_what_was_found_and_what_to_do() {
        let check = |verdict, advice: &str| Check {
            name: "memory",
            neighbour: None,
            verdict,
            found: "2.0 GiB".to_owned(),
            advice: advice.to_owned(),
        };
        let text = table(false, &[check(Verdict::Bad, "give it more"), check(Verdict::Good, "")]);
        assert!(text.contains("memory") && text.contains("2.0 GiB") && text.contains("give it more"));
        assert!(text.contains("not fit"));
    }
}
