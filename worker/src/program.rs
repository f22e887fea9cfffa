//! `ringtune-worker`, from its arguments to its exit code, with any computing library.

use std::{
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc::sync_channel},
    thread,
    time::Duration,
};

use clap::CommandFactory as _;
use ringtune_security::JoinToken;
use ringtune_shared::{
    config::{ConfigError, ENVIRONMENT_PREFIX, Loaded, Sources, load, process_environment},
    daemon::{
        lifecycle::Shutdown,
        listen::Launch,
        logging::{self, Logs},
        notify::Notifier,
        private,
        program::{DONE, FAILED, Program, USAGE},
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
    instructions,
    node::Node,
    pipeline, prepare_text,
    settings::{CHANGE_BY_RELOAD, ComputeSettings, Settings},
};

const PROGRAM: Program = Program("ringtune-worker");
/// The engine hangs: the supervisor has to restart the worker.
const HUNG: u8 = 3;

/// As Rust ends a program that panicked.
const PANICKED: u8 = 101;
/// Timeout of the last flush: a reader that takes nothing does not keep the program from its end.
const LAST_FLUSH: Duration = Duration::from_secs(1);

/// Runs a program to its end, which is the process's: nothing that libraries do at a normal exit is done. Destructors of what
/// libtorch and OpenMP have for the whole process would pull it from under threads that still compute, and after a second
/// signal, a hang or a panic some do.
pub fn main(program: impl FnOnce() -> u8) -> ! {
    let code = catch_unwind(AssertUnwindSafe(program)).unwrap_or(PANICKED);
    // On another thread: whoever prints just now holds the lock.
    let (done, flushed) = sync_channel(1);
    let flush = move || drop((std::io::stdout().flush(), done.send(())));
    if thread::Builder::new().spawn(flush).is_ok() {
        let _ = flushed.recv_timeout(LAST_FLUSH);
    }
    // SAFETY: it ends the process, and runs nothing of it.
    unsafe { libc::_exit(libc::c_int::from(code)) }
}

/// Runs first: hides a join token from other users. The program may re-execute for that.
///
/// # Errors
/// The exit code, where that is not possible.
pub fn prepare(arguments: &DaemonArguments) -> Result<(), u8> {
    arguments.hide_token().map_err(|error| fail(FAILED, &error.to_string()))
}

/// Runs the daemon, or the subcommand that was asked for, to its end.
pub fn run(arguments: Arguments, library: Library) -> u8 {
    let Some(command) = arguments.command else {
        return run_daemon(&arguments.daemon, library.start);
    };
    if let Err(code) = limit_instructions(&command) {
        return code;
    }
    with_runtime(|runtime| match command {
        Command::Generate(generate) => run_generate(runtime, &generate, library.start),
        Command::GenerateText(arguments) => run_generate_text(runtime, *arguments, library.start),
        Command::Pipeline(arguments) => {
            ended(runtime.block_on(pipeline::run(arguments, library)), pipeline::Error::is_usage)
        }
        Command::PrepareText(arguments) => {
            ended(runtime.block_on(prepare_text::run(*arguments)), prepare_text::Error::is_usage)
        }
        Command::Doctor(doctor) => match runtime.block_on(doctor::run(&doctor, library.start)) {
            Ok(false) => FAILED,
            outcome => ended(outcome.map(drop), doctor::Error::is_usage),
        },
        Command::Bench(BenchCommand::Step(arguments)) => {
            ended(runtime.block_on(bench::step(&arguments, library)), bench::Error::is_usage)
        }
        Command::Bench(BenchCommand::Unet(arguments)) => {
            ended(runtime.block_on(bench::unet(&arguments, library)), bench::Error::is_usage)
        }
        Command::Config(ConfigCommand::Check(arguments)) => check_settings(&arguments),
        Command::Man(man) => PROGRAM.man(Arguments::command(), &man),
        Command::Completions(completions) => PROGRAM.completions(Arguments::command(), &completions),
    })
}

/// Runs the daemon to its end.
pub fn run_daemon(arguments: &DaemonArguments, start: StartEngine) -> u8 {
    private::by_default();
    let loaded = match loaded(arguments, check::settings) {
        Ok(loaded) => loaded,
        Err(error) => return fail(USAGE, &error.to_string()),
    };
    if arguments.common.print_config {
        return PROGRAM.print_config(&loaded);
    }
    if let Err(error) = instructions::limit_process(loaded.settings.compute.instruction_set) {
        return fail(USAGE, &error.to_string());
    }
    with_runtime(|runtime| {
        let logs = match logging::start(&loaded.settings.log) {
            Ok(logs) => logs,
            Err(error) => return fail(USAGE, &error.to_string()),
        };
        let token = match arguments.token() {
            Ok(token) => token,
            Err(error) => return fail(USAGE, &error.to_string()),
        };
        match runtime.block_on(live(arguments, loaded.settings, token, &logs, start)) {
            Ok(code) => code,
            Err(error) if error.is_usage() => fail(USAGE, &error.to_string()),
            Err(error @ daemon::Error::Hung) => fail(HUNG, &error.to_string()),
            Err(error) => fail(FAILED, &error.to_string()),
        }
    })
}

/// What computes without being a daemon is limited by the environment, and `doctor` by the settings that it is given too.
fn limit_instructions(command: &Command) -> Result<(), u8> {
    let file = match command {
        Command::Doctor(doctor) => doctor.config.clone(),
        _ => None,
    };
    // Of what else is there only daemons take notice.
    let mut environment = process_environment().unwrap_or_default();
    environment.retain(|(name, _)| name.strip_prefix(ENVIRONMENT_PREFIX) == Some("COMPUTE__INSTRUCTION_SET"));
    let sources = Sources { file, environment, ..Sources::default() };
    let settings: Settings = load(sources).map_err(|error| fail(USAGE, &error.to_string()))?;
    instructions::limit_process(settings.compute.instruction_set)
        .map_err(|error| fail(USAGE, &error.to_string()))
}

/// The worker's life; the result is its exit code.
async fn live(
    arguments: &DaemonArguments,
    settings: Settings,
    token: Option<JoinToken>,
    logs: &Logs,
    start: StartEngine,
) -> Result<u8, daemon::Error> {
    let shutdown = Shutdown::on_signals().map_err(daemon::Error::Announce)?;
    let (asked, exit_code) = (shutdown.soft.clone(), settings.shutdown.exit_code);
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
        ended = daemon::run(settings, Start { launch, token }, shutdown, start) => ended?,
        () = reloading.follow(hangups, apply) => (),
    }
    Ok(if asked.is_cancelled() { exit_code } else { DONE })
}

fn loaded(
    arguments: &DaemonArguments,
    read: fn(Sources) -> Result<Loaded<Settings>, ConfigError>,
) -> Result<Loaded<Settings>, ConfigError> {
    read(arguments.sources()?)
}

/// Looks at the settings, and at the token that a worker would be started with.
fn check_settings(arguments: &DaemonArguments) -> u8 {
    let token = arguments.token().err().map(|error| format!("--join-file: {error}"));
    PROGRAM.checked(loaded(arguments, check::settings_and_files), Vec::from_iter(token))
}

fn run_generate(runtime: &Runtime, arguments: &GenerateArguments, start: StartEngine) -> u8 {
    let node = Node::detect();
    let threads = default_threads(&node, &ComputeSettings::default());
    let precision = if node.cpu.has_bf16() { Precision::Bf16 } else { Precision::Fp32 };
    let engine = match start(Threads::anywhere(threads)) {
        Ok(engine) => engine,
        Err(error) => return fail(FAILED, &error.to_string()),
    };
    ended(runtime.block_on(generate::run(arguments, &engine, threads, precision)), generate::Error::is_usage)
}

fn run_generate_text(runtime: &Runtime, arguments: GenerateTextArguments, start: StartEngine) -> u8 {
    let node = Node::detect();
    let machine = generate_text::Machine {
        threads: default_threads(&node, &ComputeSettings::default()),
        has_bf16: node.cpu.has_bf16(),
        start,
    };
    ended(runtime.block_on(generate_text::run(arguments, machine)), generate_text::Error::is_usage)
}

/// Networks and files: two threads are plenty beside those that compute.
fn with_runtime(work: impl FnOnce(&Runtime) -> u8) -> u8 {
    let runtime = match Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(FAILED, &format!("cannot start: {error}")),
    };
    let code = work(&runtime);
    runtime.shutdown_background();
    code
}

/// The exit code of what has ended; says why, where it failed.
fn ended<E: std::error::Error>(outcome: Result<(), E>, is_usage: fn(&E) -> bool) -> u8 {
    match outcome {
        Ok(()) => DONE,
        Err(error) => fail(if is_usage(&error) { USAGE } else { FAILED }, &error.to_string()),
    }
}

fn fail(code: u8, text: &str) -> u8 {
    PROGRAM.fail(code, text)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Set in the process that ends itself.
    const ENDS: &str = "RINGTUNE_TEST_ENDS";

    extern "C" fn destructor() {
        // As one whose memory a thread still uses.
        std::process::abort();
    }

    #[test]
    fn no_end_runs_what_libraries_do_at_exit() {
        if let Ok(how) = std::env::var(ENDS) {
            // SAFETY: the function unwinds nowhere.
            unsafe { libc::atexit(destructor) };
            main(|| {
                if how == "panic" {
                    panic!("as asked")
                } else {
                    print!("the last word");
                    7
                }
            });
        }
        for (how, code) in [("return", 7), ("panic", 101)] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "program::tests::no_end_runs_what_libraries_do_at_exit", "--nocapture"]);
            let ended = child.env(ENDS, how).output().unwrap();
            assert_eq!(ended.status.code(), Some(code), "{how}: {ended:?}");
            let said = String::from_utf8_lossy(&ended.stdout).into_owned();
            assert_eq!(said.contains("the last word"), how == "return", "{said}");
        }
    }
}
