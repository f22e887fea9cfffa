//! `ringtune-worker`: see `ringtune-worker --help`.

use std::{io::Write as _, process::ExitCode};

use clap::Parser as _;
use ringtune_shared::daemon::{lifecycle::Shutdown, logging};
use ringtune_worker::{
    arguments::{Arguments, Command, DaemonArguments},
    capabilities::default_threads,
    daemon, doctor,
    engine::{EngineHandle, Precision, TorchEngine},
    generate::{self, GenerateArguments},
    node::Node,
    patience, pipeline,
};
use tokio::runtime::{Builder, Runtime};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(error) = patience::ensure() {
        // Only slower on busy cores.
        let _ = writeln!(std::io::stderr(), "ringtune-worker: set GOMP_SPINCOUNT=0 by hand: {error}");
    }
    // Networks and files: two threads are plenty beside those that compute.
    let runtime = match Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(FAILED, &format!("cannot start: {error}")),
    };
    let code = match arguments.command {
        None => run_daemon(&runtime, &arguments.daemon),
        Some(Command::Generate(generate)) => run_generate(&runtime, &generate),
        Some(Command::Pipeline(arguments)) => match runtime.block_on(pipeline::run(arguments)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.is_usage() => fail(USAGE, &error.to_string()),
            Err(error) => fail(FAILED, &error.to_string()),
        },
        Some(Command::Doctor(doctor)) => match runtime.block_on(doctor::run(&doctor)) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(FAILED),
            Err(error) => fail(FAILED, &error.to_string()),
        },
    };
    runtime.shutdown_background();
    code
}

fn run_daemon(runtime: &Runtime, arguments: &DaemonArguments) -> ExitCode {
    let settings = match arguments.settings() {
        Ok(settings) => settings,
        Err(error) => return fail(USAGE, &error.to_string()),
    };
    if let Err(error) = logging::start(&settings.log) {
        return fail(USAGE, &error.to_string());
    }
    let ended = runtime.block_on(async {
        let shutdown = Shutdown::on_signals().map_err(daemon::Error::Announce)?;
        if arguments.common.lifeline {
            shutdown.end_with_stdin().map_err(daemon::Error::Announce)?;
        }
        daemon::run(settings, arguments.common.launch(), shutdown).await
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_usage() => fail(USAGE, &error.to_string()),
        Err(error) => fail(FAILED, &error.to_string()),
    }
}

fn run_generate(runtime: &Runtime, arguments: &GenerateArguments) -> ExitCode {
    let node = Node::detect();
    let threads = default_threads(&node, 0);
    let precision = if node.cpu.has_bf16() { Precision::Bf16 } else { Precision::Fp32 };
    let engine = match EngineHandle::start(move || TorchEngine::new(threads)) {
        Ok(engine) => engine,
        Err(error) => return fail(FAILED, &error.to_string()),
    };
    match runtime.block_on(generate::run(arguments, &engine, threads, precision)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ generate::Error::Option { .. }) => fail(USAGE, &error.to_string()),
        Err(error) => fail(FAILED, &error.to_string()),
    }
}

/// A closed stderr is nobody's loss.
fn fail(code: u8, text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "ringtune-worker: {text}");
    ExitCode::from(code)
}
