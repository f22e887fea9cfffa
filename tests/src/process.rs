//! Child processes with a time limit.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// No command of these tests takes longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(420);

/// Result of a finished command.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Its exit code; none after a signal.
    pub code: Option<i32>,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

impl Finished {
    /// Fails, with all that it said, unless it ended with `code`.
    pub fn expect_code(self, code: i32) -> Result<Self> {
        ensure!(
            self.code == Some(code),
            "exit code {:?} instead of {code}\nstdout:\n{}\nstderr:\n{}",
            self.code,
            self.stdout,
            self.stderr
        );
        Ok(self)
    }

    /// Fails unless stderr holds every one of `parts`.
    pub fn expect_said(self, parts: &[&str]) -> Result<Self> {
        for part in parts {
            ensure!(self.stderr.contains(part), "{part:?} was not said in:\n{}", self.stderr);
        }
        Ok(self)
    }

    /// The lines of stdout as JSON objects.
    pub fn json_lines(&self) -> Result<Vec<serde_json::Value>> {
        let parse = |line: &str| serde_json::from_str(line).with_context(|| format!("not JSON: {line}"));
        self.stdout.lines().map(parse).collect()
    }
}

/// Runs a command to its end; kills it at the time limit.
pub async fn finish(command: &mut Command) -> Result<Finished> {
    let child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn();
    finish_child(child.with_context(|| format!("start {command:?}"))?).await
}

/// Waits for the end of a child that was started with piped output; kills it at the time limit.
pub async fn finish_child(child: Child) -> Result<Finished> {
    let output = tokio::time::timeout(LIMIT, child.wait_with_output())
        .await
        .with_context(|| format!("not finished after {} s", LIMIT.as_secs()))??;
    Ok(Finished {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Sends a signal to a running child.
pub fn send_signal(child: &Child, signal: Signal) -> Result<()> {
    signal_process(child.id().and_then(|id| i32::try_from(id).ok()).context("it ended already")?, signal)
}

/// Sends a signal to a process.
pub fn signal_process(id: i32, signal: Signal) -> Result<()> {
    Ok(kill_process(Pid::from_raw(id).context("a process id")?, signal)?)
}
