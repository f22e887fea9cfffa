//! A folder of its own for a test, and the `ringtune` command within it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    Job, places,
    process::{Finished, finish},
    wait::{SOON, until},
};

/// A temporary folder in which all state and output of a test's commands stay.
#[derive(Debug)]
pub struct Sandbox {
    folder: TempDir,
}

impl Sandbox {
    /// An empty one.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ringtune-test-").tempdir()?;
        fs::create_dir(folder.path().join("state"))?;
        Ok(Self { folder })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Something in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `job` under that name and returns where it is.
    pub fn write_job(&self, name: &str, job: &Job) -> Result<PathBuf> {
        let path = self.path(name);
        job.write(&path)?;
        Ok(path)
    }

    /// The `ringtune` command, at home in this sandbox.
    pub fn ringtune(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(places::program("ringtune")?);
        command
            .args(arguments)
            .current_dir(self.folder())
            .env("XDG_STATE_HOME", self.path("state"))
            .env("NO_COLOR", "1")
            .env_remove("RINGTUNE_COORDINATOR")
            .kill_on_drop(true);
        Ok(command)
    }

    /// Runs a `ringtune` command to its end.
    pub async fn finish(&self, arguments: &[&str]) -> Result<Finished> {
        finish(&mut self.ringtune(arguments)?).await
    }

    /// The command lines of all processes that were started for this sandbox.
    pub fn processes(&self) -> Result<Vec<String>> {
        let marker = self.folder().to_string_lossy().into_owned();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            // Processes end while we look, and a zombie's command line is empty.
            let Ok(line) = fs::read(entry?.path().join("cmdline")) else { continue };
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains(&marker) {
                found.push(line);
            }
        }
        Ok(found)
    }

    /// Waits until no process of this sandbox is left.
    pub async fn expect_no_process(&self) -> Result<()> {
        until("no process is left", SOON, || async { Ok(self.processes()?.is_empty().then_some(())) })
            .await
            .with_context(|| format!("still there: {:?}", self.processes()))
    }
}
