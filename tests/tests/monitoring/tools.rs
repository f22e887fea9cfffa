//! Prometheus' programs, from Debian's package "prometheus".

use std::{fs::File, net::Ipv4Addr, path::Path, process::Stdio};

use anyhow::{Context as _, Result};
use ringtune_tests::{
    Visitor,
    process::{Finished, finish, finish_child},
    tools,
    wait::{SOON, until},
};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpListener,
    process::{Child, Command},
};

/// Whether both are there. If not, a test that needs them says that it does nothing.
pub(crate) fn are_here() -> Result<bool> {
    tools::has(&["promtool", "prometheus"], "prometheus")
}

/// `promtool` in a folder.
pub(crate) async fn promtool(folder: &Path, arguments: &[&str]) -> Result<Finished> {
    finish(Command::new("promtool").args(arguments).current_dir(folder)).await
}

/// What `promtool check metrics` says of a daemon's metrics: nothing, if all is well.
pub(crate) async fn check_metrics(text: &str) -> Result<Finished> {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn()?;
    child.stdin.take().context("stdin")?.write_all(text.as_bytes()).await?;
    finish_child(child).await
}

/// A running Prometheus.
#[derive(Debug)]
pub(crate) struct Prometheus {
    url: String,
    _process: Child,
}

impl Prometheus {
    /// Starts one on a configuration; all that it writes stays in `folder`.
    pub(crate) async fn start(folder: &Path, configuration: &Path) -> Result<Self> {
        // Nobody else takes a port that was given just now.
        let address = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let log = File::create(folder.join("prometheus.log"))?;
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("prometheus").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let ready = || async {
            let answer = Visitor::plain().get(address, Ipv4Addr::LOCALHOST, "/-/ready").await;
            Ok(answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")).then_some(()))
        };
        let started = until("Prometheus is ready", SOON, ready).await;
        let log = || std::fs::read_to_string(folder.join("prometheus.log")).unwrap_or_default();
        started.with_context(log)?;
        Ok(Self { url: format!("http://{address}"), _process: process })
    }

    /// The samples that a query gives now.
    pub(crate) async fn ask(&self, query: &str) -> Result<Vec<f64>> {
        let arguments = ["query", "instant", "--format=json", &self.url, query];
        let answer = promtool(Path::new("/"), &arguments).await?.expect_code(0);
        let answer: serde_json::Value = serde_json::from_str(&answer.context(query.to_owned())?.stdout)?;
        let sample = |sample: &serde_json::Value| sample["value"][1].as_str()?.parse().ok();
        let samples = answer.as_array().context("a list")?.iter().map(sample).collect::<Option<_>>();
        samples.with_context(|| format!("{query}: {answer}"))
    }

    /// Waits until a query gives something.
    pub(crate) async fn until_answered(&self, query: &str) -> Result<Vec<f64>> {
        let answered = || async { Ok(Some(self.ask(query).await?).filter(|samples| !samples.is_empty())) };
        until(query, SOON, answered).await
    }
}
