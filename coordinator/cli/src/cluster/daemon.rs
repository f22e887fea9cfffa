//! One daemon as a child process that cannot outlive us.
//!
//! Its stdin is a pipe that only we hold: when we end, however we end, it reads the end of the pipe and
//! shuts down. It has a process group of its own, so that Ctrl-C reaches us alone and we decide.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{ClusterError, Ports};

/// How long a daemon may take until it listens: libtorch is large, and the machine may be busy.
const START_TIMEOUT: Duration = Duration::from_secs(90);
/// How long a daemon may take to end: a worker has 30 s for its step and its files, a coordinator 10 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(35);
/// With less room than this on its disk a log may stay empty.
const LOG_BYTES: u64 = 64 << 10;
/// Lines of a log shown when something fails, and the bytes looked at for them.
const TAIL_LINES: usize = 12;
const TAIL_BYTES: u64 = 16 << 10;

/// What a daemon says on stdout once it listens.
#[derive(Debug, Clone, Deserialize)]
pub struct Announcement {
    /// HOST:PORT of its gRPC services.
    pub grpc: String,
    /// HOST:PORT of its HTTP pages.
    pub http: String,
    /// A worker's UUID; empty for the coordinator.
    #[serde(default)]
    pub id: String,
}

/// How to start a daemon.
#[derive(Debug, Clone)]
pub(super) struct DaemonCommand {
    pub(super) label: String,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) log: PathBuf,
    pub(super) listen: Listen,
}

/// Where a daemon is to listen.
#[derive(Debug, Clone)]
pub(super) enum Listen {
    /// At its default ports, or at free ones where these are taken.
    Default,
    /// At any free ports.
    Free,
    /// Where its predecessor did, whose log it goes on with.
    Again(Announcement),
}

impl Listen {
    fn arguments(&self) -> Vec<&str> {
        match self {
            Self::Default => vec!["--free-ports"],
            Self::Free => vec!["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"],
            Self::Again(at) => vec!["--listen", &at.grpc, "--http-listen", &at.http],
        }
    }
}

impl DaemonCommand {
    /// State in `folder/LABEL`, log in `folder/LABEL.log`.
    pub(super) fn new(label: &str, program: PathBuf, folder: &Path, ports: Ports) -> Self {
        let log = folder.join(format!("{label}.log"));
        let listen = match ports {
            Ports::Free => Listen::Free,
            Ports::Default => Listen::Default,
        };
        let mut command = Self { label: label.to_owned(), program, arguments: Vec::new(), log, listen };
        command.argument("--state-dir", folder.join(label));
        // The log is shown to people.
        command.argument("--log-format", "human");
        for flag in ["--lifeline", "--announce"] {
            command.flag(flag);
        }
        command
    }

    pub(super) fn flag(&mut self, name: &str) {
        self.arguments.push(name.into());
    }

    pub(super) fn argument(&mut self, name: &str, value: impl Into<OsString>) {
        self.flag(name);
        self.arguments.push(value.into());
    }
}

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    command: DaemonCommand,
    child: Child,
    lifeline: Option<ChildStdin>,
    announcement: Announcement,
    started: Instant,
    /// This process or one before it has ended by itself.
    ended: bool,
}

/// How a daemon ended.
#[derive(Debug)]
pub(super) struct Exit {
    pub(super) label: String,
    pub(super) status: String,
    pub(super) log_tail: String,
}

impl Daemon {
    /// Starts a daemon and waits until it listens.
    pub(super) async fn start(command: DaemonCommand) -> Result<Self, ClusterError> {
        let DaemonCommand { label, program, arguments, log, listen } = &command;
        let mut child = Command::new(program)
            .args(arguments)
            .args(listen.arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(open_locked(log, matches!(listen, Listen::Again(_)))?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| ClusterError::Spawn { program: program.clone(), source })?;
        // Taken out, because waiting for a child closes its stdin.
        let lifeline = child.stdin.take();
        let stdout = child.stdout.take();
        // One that ends closes its stdout. Not asked whether it has ended: what it said before counts.
        match tokio::time::timeout(START_TIMEOUT, first_line(stdout)).await {
            Ok(Ok(line)) if line.is_empty() => {
                // It closed its stdout: it is about to end.
                let status = child.wait().await;
                Err(exit_of(label, log, status).into_error())
            }
            Ok(Ok(line)) => match serde_json::from_str(&line) {
                Ok(announcement) => {
                    let started = Instant::now();
                    Ok(Self { command, child, lifeline, announcement, started, ended: false })
                }
                Err(_) => Err(ClusterError::Announcement { label: label.clone(), line }),
            },
            Ok(Err(source)) => {
                let path = log.clone();
                Err(ClusterError::File { doing: "cannot read the output of", path, source })
            }
            Err(_) => Err(ClusterError::Silent {
                label: label.clone(),
                seconds: START_TIMEOUT.as_secs(),
                log_tail: tail(log),
            }),
        }
    }

    pub(super) fn announcement(&self) -> &Announcement {
        &self.announcement
    }

    pub(super) fn label(&self) -> &str {
        &self.command.label
    }

    pub(super) fn log_tail(&self) -> String {
        tail(&self.command.log)
    }

    /// How long it has been listening.
    pub(super) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until it ends by itself; safe to drop in mid-wait.
    pub(super) async fn exited(&mut self) -> Exit {
        let status = self.child.wait().await;
        self.ended = true;
        exit_of(&self.command.label, &self.command.log, status)
    }

    /// Puts a new process in the place of one that ended: with its state, at its addresses.
    pub(super) async fn start_again(&mut self) -> Result<(), ClusterError> {
        let listen = Listen::Again(self.announcement.clone());
        let ended = self.ended;
        *self = Self { ended, ..Self::start(DaemonCommand { listen, ..self.command.clone() }).await? };
        Ok(())
    }

    /// Whether it has ended by itself, also before it was started again.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Lets it end, and kills it when it takes too long.
    pub(super) async fn stop(mut self) {
        // Told, not left: an end of the lifeline alone means that nobody looks after the daemons any more. One that has ended
        // needs no signal.
        let id = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let _ = id.map(|id| kill_process(id, Signal::TERM));
        drop(self.lifeline.take());
        if tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            crate::output::remark(&format!("the {} does not end; killing it", self.label()));
            // Fails only when it ended just now.
            let _ = self.child.kill().await;
        }
    }
}

impl Exit {
    pub(super) fn into_error(self) -> ClusterError {
        ClusterError::Exited { label: self.label, status: self.status, log_tail: self.log_tail }
    }
}

fn exit_of(label: &str, log: &Path, status: io::Result<ExitStatus>) -> Exit {
    let status = match status {
        Ok(status) => match status.signal() {
            Some(9) => "killed by signal 9; did the machine run out of memory?".to_owned(),
            _ => status.to_string(),
        },
        Err(error) => format!("it cannot be waited for: {error}"),
    };
    Exit { label: label.to_owned(), status, log_tail: tail(log) }
}

/// Reads the announcement, and from then on throws away what comes, so that the daemon never blocks.
async fn first_line(stdout: Option<ChildStdout>) -> io::Result<String> {
    let Some(stdout) = stdout else { return Ok(String::new()) };
    let mut reader = BufReader::new(stdout);
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
    Ok(line.trim_end().to_owned())
}

/// A log file, new or gone on with, that is locked for as long as the daemon that writes it lives: the lock goes with the
/// open file that the child inherits as its stderr. So a folder whose locks are free is nobody's.
fn open_locked(log: &Path, go_on: bool) -> Result<File, ClusterError> {
    let failed = |source| ClusterError::File { doing: "cannot write", path: log.to_owned(), source };
    let file =
        File::options().create(true).append(go_on).write(true).truncate(!go_on).open(log).map_err(failed)?;
    file.try_lock().map_err(|error| failed(error.into()))?;
    Ok(file)
}

/// The last lines of a file, indented; a remark when it cannot be read or is empty.
fn tail(path: &Path) -> String {
    let text = match read_end(path) {
        Ok(text) => text,
        Err(error) => return format!("  (cannot read {}: {error})", path.display()),
    };
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        let folder = path.parent().unwrap_or(path);
        let free =
            rustix::fs::statvfs(folder).map(|about| about.f_bavail.saturating_mul(about.f_frsize)).ok();
        return why_empty(folder, free);
    }
    let first = lines.len().saturating_sub(TAIL_LINES);
    lines[first..].iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// A daemon on a full disk cannot say so in its log. `free`: bytes, where that can be seen.
fn why_empty(folder: &Path, free: Option<u64>) -> String {
    match free {
        Some(free) if free < LOG_BYTES => {
            format!("  (empty: the disk of {} is full, nothing could be written there)", folder.display())
        }
        _ => "  (empty)".to_owned(),
    }
}

fn read_end(path: &Path) -> io::Result<String> {
    use io::{Read as _, Seek as _, SeekFrom};
    let mut file = fs::File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_the_last_lines() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("x.log");
        let text: String = (0..5000).map(|line| format!("line {line}\n")).collect();
        fs::write(&path, text).expect("written");
        let shown = tail(&path);
        assert_eq!(shown.lines().count(), TAIL_LINES);
        assert!(shown.ends_with("  line 4999"), "{shown}");
        assert!(tail(&folder.path().join("none")).contains("cannot read"));
    }

    #[test]
    fn an_empty_log_on_a_full_disk_says_why_it_is_empty() {
        let folder = Path::new("/logs");
        assert!(why_empty(folder, Some(0)).contains("the disk of /logs is full"));
        assert_eq!(why_empty(folder, Some(1 << 30)), "  (empty)");
        assert_eq!(why_empty(folder, None), "  (empty)");
    }

    fn shell(script: &str, folder: &Path) -> DaemonCommand {
        DaemonCommand {
            label: "worker-1".to_owned(),
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into(), "sh".into()],
            log: folder.join("worker-1.log"),
            listen: Listen::Free,
        }
    }

    #[tokio::test]
    async fn a_daemon_is_ready_when_it_says_where_it_listens_and_ends_with_its_lifeline() {
        let folder = tempfile::tempdir().expect("folder");
        let script = r#"echo '{"event":"listening","grpc":"127.0.0.1:1","http":"127.0.0.1:2","id":"a"}'; cat; echo end >&2"#;
        let mut daemon = Daemon::start(shell(script, folder.path())).await.expect("started");
        assert_eq!(daemon.announcement().grpc, "127.0.0.1:1");
        drop(daemon.lifeline.take());
        assert!(daemon.exited().await.log_tail.ends_with("end"));
    }

    #[tokio::test]
    async fn a_daemon_that_ends_before_it_listens_is_an_error_with_its_log() {
        let folder = tempfile::tempdir().expect("folder");
        let error =
            Daemon::start(shell("echo no such flag >&2; exit 2", folder.path())).await.expect_err("ended");
        let ClusterError::Exited { status, log_tail, .. } = error else { panic!("{error}") };
        assert!(status.contains('2') && log_tail.contains("no such flag"), "{status} {log_tail}");
    }

    #[tokio::test]
    async fn a_running_daemon_holds_the_lock_of_its_log() {
        let folder = tempfile::tempdir().expect("folder");
        // One process, as a daemon is: a child would have the log for a moment longer.
        let script = r#"echo '{"grpc":"127.0.0.1:1","http":"127.0.0.1:2"}'; exec cat"#;
        let daemon = Daemon::start(shell(script, folder.path())).await.expect("started");
        let log = || File::open(folder.path().join("worker-1.log")).expect("log");
        assert!(log().try_lock().is_err(), "the lock is free while the daemon lives");
        daemon.stop().await;
        assert!(log().try_lock().is_ok(), "the lock is held after the daemon's end");
    }
}
