//! `make bench-control`: a control plane under load, held against its bounds.

mod arguments;
mod judge;
mod load;
mod probes;
mod report;
mod stages;

use std::{io::Write as _, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, Parser as _, error::ErrorKind};
use ringtune_tests::Sandbox;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    runtime::{Builder, Handle},
    signal::unix::{SignalKind, signal},
};

use arguments::Arguments;
use report::Report;
use stages::{Bench, say};

/// As a shell reports a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(problem) = arguments.problem() {
        Arguments::command().error(ErrorKind::ValueValidation, problem).exit();
    }
    start(arguments).unwrap_or_else(|error| {
        say(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}

fn start(arguments: Arguments) -> Result<ExitCode> {
    raise_file_limit(arguments.workers)?;
    // The swarm has a thread of its own, so that it is not what the calls wait for.
    let swarm_runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let code = runtime.block_on(run(arguments, swarm_runtime.handle()));
    swarm_runtime.shutdown_background();
    code
}

async fn run(arguments: Arguments, swarm_runtime: &Handle) -> Result<ExitCode> {
    let sandbox = match &arguments.folder {
        Some(folder) => Sandbox::within(folder)?,
        None => Sandbox::new()?,
    };
    let json = arguments.json;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let measured = tokio::select! {
        measured = measure(arguments, &sandbox, swarm_runtime) => Some(measured),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
    };
    // Dropped with the measurement, the coordinator was killed.
    sandbox.expect_no_process().await?;
    let Some(measured) = measured else {
        say("interrupted");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let report = measured.with_context(|| last_lines(&sandbox))?;
    let mut stdout = std::io::stdout().lock();
    if json {
        writeln!(stdout, "{:#}", report.to_json())?;
    } else {
        write!(stdout, "{}", report.table())?;
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(arguments: Arguments, sandbox: &Sandbox, swarm_runtime: &Handle) -> Result<Report> {
    Box::pin(Bench::start(arguments, sandbox, swarm_runtime).await?.run()).await
}

/// Every worker needs a file here and one in the coordinator, which inherits the limit.
fn raise_file_limit(workers: usize) -> Result<()> {
    const OTHERS: u64 = 256;
    let needed = workers as u64 + OTHERS;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    limit.current = Some(limit.maximum.map_or(needed, |maximum| maximum.min(needed)));
    setrlimit(Resource::Nofile, limit)?;
    anyhow::ensure!(
        limit.current >= Some(needed),
        "{workers} workers need {needed} open files, and the hard limit is {:?} (ulimit -Hn)",
        limit.maximum
    );
    Ok(())
}

/// The end of the coordinator's log, for an error.
fn last_lines(sandbox: &Sandbox) -> String {
    let log = std::fs::read_to_string(sandbox.path("coordinator.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().rev().take(20).collect();
    format!(
        "the coordinator said last:\n{}\nand this ended the measurement",
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    )
}
