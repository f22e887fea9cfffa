//! `ringtune-coordinator`: see `ringtune-coordinator --help`.

use std::{io::Write as _, process::ExitCode};

use clap::Parser as _;
use ringtune_coordinator::{arguments::Arguments, daemon, settings::Settings};
use ringtune_shared::{
    config::{ConfigError, load, process_environment},
    daemon::{lifecycle::Shutdown, logging},
};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
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

/// A closed stderr is nobody's loss.
fn fail(code: u8, text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "ringtune-coordinator: {text}");
    ExitCode::from(code)
}
