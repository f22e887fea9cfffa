//! `ringtune-coordinator`: see `ringtune-coordinator --help`.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::CommandFactory as _;
use ringtune_coordinator::{
    arguments::{
        Arguments, BackupArguments, Command, ConfigCommand, RestoreArguments, StateArguments, sources,
    },
    backup::{self, Manifest},
    check,
    daemon::{self, Daemon, limits_of},
    opening,
    settings::{CHANGE_BY_RELOAD, Settings},
    state_folder::StateFolder,
};
use ringtune_shared::{
    config::{ConfigError, Loaded, Sources, load_checked, process_environment},
    daemon::{
        arguments::{self, CommonArguments},
        lifecycle::Shutdown,
        listen::Launch,
        logging::{self, Logs},
        notify::Notifier,
        private,
        program::{DONE, FAILED, Program, USAGE},
        reload::{Hangups, Reloading},
    },
};

/// The exit code of a state folder that somebody has to put in order: another start finds the same.
const REPAIR: u8 = 4;

const PROGRAM: Program = Program("ringtune-coordinator");

fn main() -> ExitCode {
    let arguments: Arguments = arguments::parse();
    ExitCode::from(match &arguments.command {
        Some(command) => other(command),
        None => run(&arguments).unwrap_or_else(|code| code),
    })
}

/// Its exit code, also as an error; why it failed is said.
fn run(arguments: &Arguments) -> Result<u8, u8> {
    private::by_default();
    let loaded = loaded(&arguments.common, check::settings);
    let loaded = loaded.map_err(|error| fail(USAGE, &error.to_string()))?;
    if arguments.common.print_config {
        return Ok(PROGRAM.print_config(&loaded));
    }
    let logs = logging::start(&loaded.settings.log).map_err(|error| fail(USAGE, &error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| fail(FAILED, &format!("cannot start: {error}")))?;
    let ended = runtime.block_on(live(&arguments.common, loaded.settings, &logs));
    // A file operation that hangs is not waited for.
    runtime.shutdown_background();
    ended.map(|()| DONE).map_err(|error| match &error {
        error if error.is_usage() => fail(USAGE, &error.to_string()),
        error if error.needs_repair() => fail(REPAIR, &error.to_string()),
        error => fail(FAILED, &error.to_string()),
    })
}

async fn live(flags: &CommonArguments, settings: Settings, logs: &Logs) -> Result<(), daemon::Error> {
    let shutdown = Shutdown::on_signals().map_err(daemon::Error::Process)?;
    let hangups = Hangups::listen().map_err(daemon::Error::Process)?;
    if flags.lifeline {
        shutdown.notice_the_end_of_stdin().map_err(daemon::Error::Process)?;
    }
    let launch = Launch { notifier: Notifier::of_process(), ..flags.launch() };
    let again = flags.clone();
    let reloading = Reloading {
        running: settings.clone(),
        read: Arc::new(move || loaded(&again, check::settings).map(|loaded| loaded.settings)),
        may_change: &CHANGE_BY_RELOAD,
        notifier: launch.notifier.clone(),
        reread: launch.reread.clone(),
    };
    let daemon = Daemon::start(settings, launch, shutdown).await?;
    let changing = daemon.changing();
    tokio::select! {
        ended = daemon.ended() => ended,
        () = reloading.follow(hangups, async |settings| changing.apply(settings, logs).await) => Ok(()),
    }
}

fn loaded(
    flags: &CommonArguments,
    read: fn(Sources) -> Result<Loaded<Settings>, ConfigError>,
) -> Result<Loaded<Settings>, ConfigError> {
    read(sources(flags, process_environment()?))
}

fn other(command: &Command) -> u8 {
    match command {
        Command::Backup(arguments) => {
            private::by_default();
            copied(back_up(arguments), "saved in", &arguments.to)
        }
        Command::Restore(arguments) => {
            private::by_default();
            copied(restore(arguments), "put back from", &arguments.from)
        }
        Command::AdoptContents(arguments) => match adopt(arguments) {
            Ok(folder) => {
                say(&format!(
                    "the database and the files in {} belong together from now on: the next start moves files that no job wants \
                     into the trash",
                    folder.display()
                ));
                DONE
            }
            Err((code, text)) => fail(code, &text),
        },
        Command::Config(ConfigCommand::Check(flags)) => {
            PROGRAM.checked(loaded(flags, check::settings_and_files), Vec::new())
        }
        Command::Man(man) => PROGRAM.man(Arguments::command(), man),
        Command::Completions(completions) => PROGRAM.completions(Arguments::command(), completions),
    }
}

/// What was copied, or why it was not, and its exit code.
type Copied = Result<Manifest, (u8, String)>;

/// The state folder of the coordinator that would be started with these flags, and why it is that one.
fn state_dir(state: &StateArguments) -> Result<(PathBuf, String), (u8, String)> {
    const KEY: &str = "storage.state_dir";
    let loaded = settings_of(state)?;
    let why = match (loaded.places.get(KEY), &state.config) {
        (Some(place), _) => format!("{KEY} comes from: {place}"),
        (None, Some(file)) => format!("it is the default, and {} sets no {KEY}", file.display()),
        (None, None) => {
            "it is the default, where --state-dir, --config and RINGTUNE__STORAGE__STATE_DIR are not given"
                .to_owned()
        }
    };
    Ok((loaded.settings.storage.state_dir, why))
}

fn settings_of(state: &StateArguments) -> Result<Loaded<Settings>, (u8, String)> {
    let sources = process_environment().map(|environment| state.sources(environment));
    let loaded = sources.and_then(|sources| load_checked(sources, |_| Vec::new()));
    loaded.map_err(|error| (USAGE, error.to_string()))
}

/// Ties the contents of a state folder to the database that is there.
fn adopt(state: &StateArguments) -> Result<PathBuf, (u8, String)> {
    private::by_default();
    let (folder, why) = state_dir(state)?;
    if !StateFolder::has_something(&folder) {
        let text = format!("{} has neither a database nor files of a coordinator ({why})", folder.display());
        return Err((USAGE, text));
    }
    let settings = settings_of(state)?.settings;
    let failed = |error: &dyn std::fmt::Display| (FAILED, error.to_string());
    let state = StateFolder::open(&folder).map_err(|error| failed(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(&error))?;
    let adopted = runtime.block_on(async {
        let opened = opening::adopt(&state, limits_of(&settings)).await?;
        opened.store.close().await;
        Ok::<_, opening::Error>(())
    });
    match adopted {
        Ok(()) => Ok(folder),
        Err(error) => Err((if error.needs_repair() { REPAIR } else { FAILED }, error.to_string())),
    }
}

fn back_up(arguments: &BackupArguments) -> Copied {
    let (folder, why) = state_dir(&arguments.state)?;
    backup::take(&folder, &arguments.to, &mut progress()).map_err(|error| failed(error, &why))
}

fn restore(arguments: &RestoreArguments) -> Copied {
    let (folder, why) = state_dir(&arguments.state)?;
    backup::restore(&arguments.from, &folder, &mut progress()).map_err(|error| failed(error, &why))
}

/// `why`: the state folder is this one.
fn failed(error: backup::Error, why: &str) -> (u8, String) {
    let text = match error.is_about_state() {
        true => format!("{error} ({why})"),
        false => error.to_string(),
    };
    (if error.is_usage() { USAGE } else { FAILED }, text)
}

/// Says how far it is, now and then.
fn progress() -> impl FnMut(u64, u64) {
    let mut said = Instant::now();
    move |contents, bytes| {
        if said.elapsed() >= Duration::from_secs(2) {
            said = Instant::now();
            say(&format!("{contents} files, {:.1} GB", bytes as f64 / 1e9));
        }
    }
}

fn copied(copied: Copied, done: &str, folder: &Path) -> u8 {
    match copied {
        Ok(manifest) => {
            say(&format!("the jobs and {} {done} {}", amount(&manifest), folder.display()));
            for hash in &manifest.missing {
                say(&format!(
                    "warning: the file {hash}, which a job names, was missing or damaged and is not in it"
                ));
            }
            DONE
        }
        Err((code, text)) => fail(code, &text),
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

fn fail(code: u8, text: &str) -> u8 {
    PROGRAM.fail(code, text)
}
