//! What `ringtune-worker` does with its arguments, up to its exit code, on whatever library it brings.

use std::{io::Write as _, process::ExitCode};

use ringtune_shared::daemon::{lifecycle::Shutdown, logging};
use tokio::runtime::{Builder, Runtime};

use crate::{
    arguments::{Arguments, Command, DaemonArguments},
    capabilities::default_threads,
    daemon::{self, Start},
    doctor,
    engine::{Library, Precision, StartEngine},
    generate::{self, GenerateArguments},
    node::Node,
    pipeline,
};

const FAILED: u8 = 1;
const USAGE: u8 = 2;
/// The engine hangs: whoever keeps the worker running is to start it again.
const HUNG: u8 = 3;

/// What comes before anything else: a join token leaves everybody's sight. The program may begin again for that.
///
/// # Errors
/// The exit code, where that is not possible.
pub fn prepare(arguments: &DaemonArguments) -> Result<(), ExitCode> {
    arguments.hide_token().map_err(|error| fail(FAILED, &error.to_string()))
}

/// Runs the daemon, or the subcommand that was asked for, to its end.
pub fn run(arguments: Arguments, library: Library) -> ExitCode {
    let command = match arguments.command {
        None => return run_daemon(&arguments.daemon, library.start),
        Some(command) => command,
    };
    with_runtime(|runtime| match command {
        Command::Generate(generate) => run_generate(runtime, &generate, library.start),
        Command::Pipeline(arguments) => match runtime.block_on(pipeline::run(arguments, library)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.is_usage() => fail(USAGE, &error.to_string()),
            Err(error) => fail(FAILED, &error.to_string()),
        },
        Command::Doctor(doctor) => match runtime.block_on(doctor::run(&doctor, library.start)) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(FAILED),
            Err(error) if error.is_usage() => fail(USAGE, &error.to_string()),
            Err(error) => fail(FAILED, &error.to_string()),
        },
    })
}

/// Runs the daemon to its end.
pub fn run_daemon(arguments: &DaemonArguments, start: StartEngine) -> ExitCode {
    with_runtime(|runtime| {
        let settings = match arguments.settings() {
            Ok(settings) => settings,
            Err(error) => return fail(USAGE, &error.to_string()),
        };
        if let Err(error) = logging::start(&settings.log) {
            return fail(USAGE, &error.to_string());
        }
        let token = match arguments.token() {
            Ok(token) => token,
            Err(error) => return fail(USAGE, &error.to_string()),
        };
        let ended = runtime.block_on(async {
            let shutdown = Shutdown::on_signals().map_err(daemon::Error::Announce)?;
            if arguments.common.lifeline {
                shutdown.end_with_stdin().map_err(daemon::Error::Announce)?;
            }
            let start_as = Start { launch: arguments.common.launch(), token };
            daemon::run(settings, start_as, shutdown, start).await
        });
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.is_usage() => fail(USAGE, &error.to_string()),
            Err(error @ daemon::Error::Hung) => fail(HUNG, &error.to_string()),
            Err(error) => fail(FAILED, &error.to_string()),
        }
    })
}

fn run_generate(runtime: &Runtime, arguments: &GenerateArguments, start: StartEngine) -> ExitCode {
    let node = Node::detect();
    let threads = default_threads(&node, 0);
    let precision = if node.cpu.has_bf16() { Precision::Bf16 } else { Precision::Fp32 };
    let engine = match start(threads) {
        Ok(engine) => engine,
        Err(error) => return fail(FAILED, &error.to_string()),
    };
    match runtime.block_on(generate::run(arguments, &engine, threads, precision)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ generate::Error::Option { .. }) => fail(USAGE, &error.to_string()),
        Err(error) => fail(FAILED, &error.to_string()),
    }
}

/// Networks and files: two threads are plenty beside those that compute.
fn with_runtime(work: impl FnOnce(&Runtime) -> ExitCode) -> ExitCode {
    let runtime = match Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(FAILED, &format!("cannot start: {error}")),
    };
    let code = work(&runtime);
    runtime.shutdown_background();
    code
}

/// A closed stderr is nobody's loss.
fn fail(code: u8, text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "ringtune-worker: {text}");
    ExitCode::from(code)
}
