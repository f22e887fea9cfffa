//! Launching and running daemons.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdout, Command},
};

use crate::{Door, Sandbox, places, process::send_signal, wait::SOON};

/// The daemon that computes.
pub const WORKER: &str = "ringtune-worker";
/// As above without libtorch.
pub const FAKE_WORKER: &str = "fake-worker";
/// The coordinator.
pub const COORDINATOR: &str = "ringtune-coordinator";

/// A daemon's launch; the defaults are those of most tests.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Its log is `LABEL.log` in the sandbox.
    pub label: String,
    /// Its state's folder in the sandbox.
    pub state: String,
    /// Its name among the built programs, or a path of another one.
    pub program: String,
    /// Address of gRPC.
    pub listen: String,
    /// Address of HTTP.
    pub http_listen: String,
    /// More flags.
    pub flags: Vec<String>,
    /// More variables in its environment.
    pub variables: Vec<(String, String)>,
    /// Whether all its ports speak TLS, on loopback too.
    pub tls: bool,
    /// Format of its log: human or json.
    pub log_format: String,
    /// A command before it, which becomes the daemon in the end and so keeps its process id; empty: none.
    pub wrapper: Vec<String>,
}

impl Launch {
    /// Of a program on a free port of loopback.
    pub fn new(label: &str, program: &str) -> Self {
        Self {
            label: label.to_owned(),
            state: label.to_owned(),
            program: program.to_owned(),
            listen: "127.0.0.1:0".to_owned(),
            http_listen: "127.0.0.1:0".to_owned(),
            flags: Vec::new(),
            variables: Vec::new(),
            tls: false,
            log_format: "human".to_owned(),
            wrapper: Vec::new(),
        }
    }

    /// Of a coordinator.
    pub fn coordinator() -> Self {
        Self::new("coordinator", COORDINATOR)
    }

    /// Of a worker with one thread that dials this HOST:PORT.
    pub fn worker(label: &str, program: &str, coordinator: &str) -> Self {
        Self::new(label, program).flags(["--coordinator", &format!("http://{coordinator}"), "--threads", "1"])
    }

    /// Sets a log of JSON objects.
    pub fn logging_json(self) -> Self {
        Self { log_format: "json".to_owned(), ..self }
    }

    /// Sets the address of HTTP.
    pub fn pages_at(self, http_listen: &str) -> Self {
        Self { http_listen: http_listen.to_owned(), ..self }
    }

    /// Sets TLS on all its ports.
    pub fn over_tls(mut self) -> Self {
        self.tls = true;
        self.variable("RINGTUNE__SECURITY__TLS", "on")
    }

    /// Of a worker, with TLS and the token that lets it in at first.
    pub fn joining(mut self, token: &Path) -> Self {
        for flag in &mut self.flags {
            if let Some(address) = flag.strip_prefix("http://") {
                *flag = format!("https://{address}");
            }
        }
        self.over_tls().flags(["--join-file", &token.to_string_lossy()])
    }

    /// Adds flags.
    pub fn flags<'a>(mut self, flags: impl IntoIterator<Item = &'a str>) -> Self {
        self.flags.extend(flags.into_iter().map(str::to_owned));
        self
    }

    /// Adds an environment variable.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts it and waits until it says where it listens.
    pub async fn start(&self, sandbox: &Sandbox) -> Result<Daemon> {
        let state = sandbox.path(&self.state).to_string_lossy().into_owned();
        let usual = ["--state-dir", &state, "--listen", &self.listen, "--http-listen", &self.http_listen];
        let flags: Vec<&str> = usual.into_iter().chain(self.flags.iter().map(String::as_str)).collect();
        Daemon::start(sandbox, self, &flags).await
    }
}

/// A folder of a daemon, which may be on a disk that only the daemon sees.
fn seen(folder: PathBuf, daemon: &Child) -> PathBuf {
    match daemon.id().filter(|_| !folder.exists()) {
        Some(id) => PathBuf::from(format!("/proc/{id}/root{}", folder.display())),
        None => folder,
    }
}

/// A running daemon; killed when dropped, and it ends by itself when this process was killed.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    /// Label of its launch.
    pub label: String,
    /// Its id, if it is a worker.
    pub id: String,
    /// HOST:PORT of its gRPC services.
    pub grpc: String,
    /// HOST:PORT of its HTTP pages.
    pub http: String,
    /// Of a coordinator that speaks TLS: the credentials of an administrator.
    admin: Option<PathBuf>,
}

impl Daemon {
    async fn start(sandbox: &Sandbox, launch: &Launch, flags: &[&str]) -> Result<Self> {
        let (label, program) = (&launch.label, places::program(&launch.program)?);
        let log = sandbox.path(&format!("{label}.log"));
        let mut command = match launch.wrapper.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        let mut child = command
            .args(flags)
            .args(["--announce", "--lifeline", "--log-format", &launch.log_format])
            .envs(launch.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::options().create(true).append(true).open(&log)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {label}"))?;
        let mut stdout = BufReader::new(child.stdout.take().context("stdout is a pipe")?);
        let mut line = String::new();
        tokio::time::timeout(SOON, stdout.read_line(&mut line))
            .await
            .context("it does not announce itself")??;
        if line.is_empty() {
            let status = child.wait().await?;
            bail!("the {label} ended ({status}):\n{}", std::fs::read_to_string(&log)?);
        }
        let said: serde_json::Value =
            serde_json::from_str(&line).with_context(|| format!("announced {line}"))?;
        let word = |key: &str| said[key].as_str().map(str::to_owned).with_context(|| key.to_owned());
        Ok(Self {
            label: label.clone(),
            id: word("id")?,
            grpc: word("grpc")?,
            http: word("http")?,
            admin: launch.tls.then(|| seen(sandbox.path(&launch.state).join("admin"), &child)),
            child,
            _stdout: stdout,
        })
    }

    /// Of a coordinator: how it is called.
    pub fn door(&self) -> Door {
        match &self.admin {
            Some(folder) => Door::locked(&self.grpc, folder),
            None => Door::open(&self.grpc),
        }
    }

    /// Its process id; none once it has ended.
    pub fn process_id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        send_signal(&self.child, signal).with_context(|| format!("{signal:?} to {}", self.label))
    }

    /// Ends it with SIGKILL, also when it is stopped, and waits until it is gone.
    pub async fn end(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Waits until it has ended by itself.
    pub async fn ended(&mut self) -> Result<std::process::ExitStatus> {
        // `wait` would close its stdin, which is its lifeline.
        let waiting = async {
            loop {
                if let Some(status) = self.child.try_wait()? {
                    return Ok(status);
                }
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        };
        tokio::time::timeout(SOON, waiting).await.with_context(|| format!("{} does not end", self.label))?
    }

    /// Ends it with SIGKILL and waits until it is gone.
    pub async fn kill(mut self) -> Result<()> {
        self.end().await
    }
}
