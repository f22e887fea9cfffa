//! `ringtune-coordinator`: see `ringtune-coordinator --help`.

use std::{
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser as _;
use ringtune_coordinator::{
    arguments::{Arguments, Command, StateArguments},
    backup::{self, Manifest},
    daemon,
    settings::Settings,
};
use ringtune_shared::{
    config::{ConfigError, load, process_environment},
    daemon::{lifecycle::Shutdown, logging},
};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(command) = &arguments.command {
        return copy(command);
    }
    let settings = match settings(&arguments) {
        Ok(settings) => settings,
        Err(error) => return fail(USAGE, &error.to_string()),
    };
    if let Err(error) = logging::start(&settings.log) {
        return fail(USAGE, &error.to_string());
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(FAILED, &format!("cannot start: {error}")),
    };
    let ended = runtime.block_on(async {
        let shutdown = Shutdown::on_signals().map_err(daemon::Error::Process)?;
        if arguments.common.lifeline {
            shutdown.end_with_stdin().map_err(daemon::Error::Process)?;
        }
        daemon::run(settings, arguments.common.launch(), shutdown).await
    });
    // A file operation that hangs is not waited for.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_usage() => fail(USAGE, &error.to_string()),
        Err(error) => fail(FAILED, &error.to_string()),
    }
}

fn settings(arguments: &Arguments) -> Result<Settings, ConfigError> {
    load(arguments.sources(process_environment()?))
}

/// Makes a backup or puts one back.
fn copy(command: &Command) -> ExitCode {
    let state_dir = |state: &StateArguments| {
        let sources = state.sources(process_environment()?);
        load::<Settings>(sources).map(|settings| settings.storage.state_dir)
    };
    let mut said = Instant::now();
    let mut progress = |contents: u64, bytes: u64| {
        if said.elapsed() >= Duration::from_secs(2) {
            said = Instant::now();
            say(&format!("{contents} files, {:.1} GB", bytes as f64 / 1e9));
        }
    };
    let (done, outcome) = match command {
        Command::Backup(backup) => match state_dir(&backup.state) {
            Ok(folder) => {
                ("saved in", backup::take(&folder, &backup.to, &mut progress).map(|all| (all, &backup.to)))
            }
            Err(error) => return fail(USAGE, &error.to_string()),
        },
        Command::Restore(restore) => match state_dir(&restore.state) {
            Ok(folder) => (
                "put back from",
                backup::restore(&restore.from, &folder, &mut progress).map(|all| (all, &restore.from)),
            ),
            Err(error) => return fail(USAGE, &error.to_string()),
        },
    };
    match outcome {
        Ok((manifest, folder)) => {
            say(&format!("the jobs and {} {done} {}", amount(&manifest), folder.display()));
            for hash in &manifest.missing {
                say(&format!(
                    "warning: the file {hash}, which a job names, was missing or damaged and is not in it"
                ));
            }
            ExitCode::SUCCESS
        }
        Err(error) => fail(if error.is_usage() { USAGE } else { FAILED }, &error.to_string()),
    }
}

fn amount(manifest: &Manifest) -> String {
    let files = if manifest.contents == 1 { "file" } else { "files" };
    format!("{} {files} ({:.1} MB)", manifest.contents, manifest.bytes as f64 / 1e6)
}

/// A closed stderr is nobody's loss.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A closed stderr is nobody's loss.
fn fail(code: u8, text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "ringtune-coordinator: {text}");
    ExitCode::from(code)
}
