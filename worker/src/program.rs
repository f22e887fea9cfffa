//! What `ringtune-worker` does with its arguments, up to its exit code, on whatever library it brings.

use std::{process::ExitCode, sync::Arc};

use clap::CommandFactory as _;
use ringtune_security::JoinToken;
use ringtune_shared::{
    config::{ConfigError, Loaded, Sources},
    daemon::{
        lifecycle::Shutdown,
        listen::Launch,
        logging::{self, Logs},
        notify::Notifier,
        program::{FAILED, Program, USAGE},
        reload::{Hangups, Reloading},
    },
};
use tokio::runtime::{Builder, Runtime};

use crate::{
    arguments::{Arguments, Command, ConfigCommand, DaemonArguments},
    bench::{self, BenchCommand},
    capabilities::default_threads,
    check,
    daemon::{self, Start},
    doctor,
    engine::{Library, Precision, StartEngine, Threads},
    generate::{self, GenerateArguments},
    generate_text::{self, GenerateTextArguments},
    node::Node,
    pipeline, prepare_text,
    settings::{CHANGE_BY_RELOAD, ComputeSettings, Settings},
};

const PROGRAM: Program = Program("ringtune-worker");
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
        Command::GenerateText(arguments) => run_generate_text(runtime, *arguments, library.start),
        Command::Pipeline(arguments) => match runtime.block_on(pipeline::run(arguments, library)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.is_usage() => fail(USAGE, &error.to_string()),
            Err(error) => fail(FAILED, &error.to_string()),
        },
        Command::PrepareText(arguments) => match runtime.block_on(prepare_text::run(*arguments)) {
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
        Command::Bench(BenchCommand::Step(arguments)) => {
            match runtime.block_on(bench::step(&arguments, library)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) if error.is_usage() => fail(USAGE, &error.to_string()),
                Err(error) => fail(FAILED, &error.to_string()),
            }
        }
        Command::Config(ConfigCommand::Check(arguments)) => check_settings(&arguments),
        Command::Man(man) => PROGRAM.man(Arguments::command(), &man),
        Command::Completions(completions) => PROGRAM.completions(Arguments::command(), &completions),
    })
}

/// Runs the daemon to its end.
pub fn run_daemon(arguments: &DaemonArguments, start: StartEngine) -> ExitCode {
    with_runtime(|runtime| {
        let loaded = match loaded(arguments, check::settings) {
            Ok(loaded) => loaded,
            Err(error) => return fail(USAGE, &error.to_string()),
        };
        if arguments.common.print_config {
            return PROGRAM.print_config(&loaded);
        }
        let logs = match logging::start(&loaded.settings.log) {
            Ok(logs) => logs,
            Err(error) => return fail(USAGE, &error.to_string()),
        };
        let token = match arguments.token() {
            Ok(token) => token,
            Err(error) => return fail(USAGE, &error.to_string()),
        };
        match runtime.block_on(live(arguments, loaded.settings, token, &logs, start)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.is_usage() => fail(USAGE, &error.to_string()),
            Err(error @ daemon::Error::Hung) => fail(HUNG, &error.to_string()),
            Err(error) => fail(FAILED, &error.to_string()),
        }
    })
}

async fn live(
    arguments: &DaemonArguments,
    settings: Settings,
    token: Option<JoinToken>,
    logs: &Logs,
    start: StartEngine,
) -> Result<(), daemon::Error> {
    let shutdown = Shutdown::on_signals().map_err(daemon::Error::Announce)?;
    let hangups = Hangups::listen().map_err(daemon::Error::Announce)?;
    if arguments.common.lifeline {
        shutdown.notice_the_end_of_stdin().map_err(daemon::Error::Announce)?;
        let Shutdown { soft, orphaned, .. } = shutdown.clone();
        tokio::spawn(async move {
            orphaned.cancelled().await;
            soft.cancel();
        });
    }
    let launch = Launch { notifier: Notifier::of_process(), ..arguments.common.launch() };
    let again = arguments.clone();
    let reloading = Reloading {
        running: settings.clone(),
        read: Arc::new(move || loaded(&again, check::settings).map(|loaded| loaded.settings)),
        may_change: &CHANGE_BY_RELOAD,
        notifier: launch.notifier.clone(),
        reread: launch.reread.clone(),
    };
    let apply =
        async |settings: &Settings| logs.set_filter(&settings.log.filter).map_err(|error| error.to_string());
    tokio::select! {
        ended = daemon::run(settings, Start { launch, token }, shutdown, start) => ended,
        () = reloading.follow(hangups, apply) => Ok(()),
    }
}

fn loaded(
    arguments: &DaemonArguments,
    read: fn(Sources) -> Result<Loaded<Settings>, ConfigError>,
) -> Result<Loaded<Settings>, ConfigError> {
    read(arguments.sources()?)
}

/// Looks at the settings, and at the token that a worker would be started with.
fn check_settings(arguments: &DaemonArguments) -> ExitCode {
    let token = arguments.token().err().map(|error| format!("--join-file: {error}"));
    PROGRAM.checked(loaded(arguments, check::settings_and_files), Vec::from_iter(token))
}

fn run_generate(runtime: &Runtime, arguments: &GenerateArguments, start: StartEngine) -> ExitCode {
    let node = Node::detect();
    let threads = default_threads(&node, &ComputeSettings::default());
    let precision = if node.cpu.has_bf16() { Precision::Bf16 } else { Precision::Fp32 };
    let engine = match start(Threads::anywhere(threads)) {
        Ok(engine) => engine,
        Err(error) => return fail(FAILED, &error.to_string()),
    };
    match runtime.block_on(generate::run(arguments, &engine, threads, precision)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ generate::Error::Option { .. }) => fail(USAGE, &error.to_string()),
        Err(error) => fail(FAILED, &error.to_string()),
    }
}

fn run_generate_text(runtime: &Runtime, arguments: GenerateTextArguments, start: StartEngine) -> ExitCode {
    let node = Node::detect();
    let machine = generate_text::Machine {
        threads: default_threads(&node, &ComputeSettings::default()),
        has_bf16: node.cpu.has_bf16(),
        start,
    };
    match runtime.block_on(generate_text::run(arguments, machine)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_usage() => fail(USAGE, &error.to_string()),
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

fn fail(code: u8, text: &str) -> ExitCode {
    PROGRAM.fail(code, text)
}
