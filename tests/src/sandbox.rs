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

/// A running process.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its id.
    pub id: i32,
    /// Its command line.
    pub command: String,
}

impl Sandbox {
    /// An empty one.
    pub fn new() -> Result<Self> {
        Self::within(&std::env::temp_dir())
    }

    /// An empty one in another folder than the system's for temporary files.
    pub fn within(folder: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("ringtune-test-").tempdir_in(folder)?;
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
            // No logins here.
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("NO_COLOR", "1")
            .env_remove("RINGTUNE_COORDINATOR")
            .kill_on_drop(true);
        Ok(command)
    }

    /// Runs a `ringtune` command to its end.
    pub async fn finish(&self, arguments: &[&str]) -> Result<Finished> {
        finish(&mut self.ringtune(arguments)?).await
    }

    /// The processes that were started for this sandbox: they name it, or they work in it.
    pub fn processes(&self) -> Result<Vec<Process>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // Processes end while we look. One that is ending has lost its command line first, then its
            // open files, and then its working folder.
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&line).replace('\0', " ");
            let works_here =
                fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(self.folder()));
            if works_here || command.contains(&*self.folder().to_string_lossy()) {
                found.push(Process { id, command });
            }
        }
        Ok(found)
    }

    /// Waits until no process of this sandbox is left.
    pub async fn expect_no_process(&self) -> Result<()> {
        until("no process is left", SOON, || async { Ok(self.processes()?.is_empty().then_some(())) })
            .await
            .with_context(|| format!("still there: {:?}", self.processes()))?;
        // A killed process loses its name and its working folder before its files, and with them its locks.
        let free = || async { Ok(self.held_locks()?.is_empty().then_some(())) };
        until("no lock is held", SOON, free)
            .await
            .with_context(|| format!("still held: {:?}", self.held_locks()))
    }

    /// The logs and lock files of runs that somebody holds.
    fn held_locks(&self) -> Result<Vec<PathBuf>> {
        let mut held = Vec::new();
        for run in fs::read_dir(self.path("state/ringtune/runs")).into_iter().flatten().flatten() {
            for entry in fs::read_dir(run.path()).into_iter().flatten().flatten() {
                let path = entry.path();
                let is_lock = path.file_name().is_some_and(|name| name == "lock")
                    || path.extension().is_some_and(|extension| extension == "log");
                if is_lock
                    && fs::File::options().write(true).open(&path).is_ok_and(|file| file.try_lock().is_err())
                {
                    held.push(path);
                }
            }
        }
        Ok(held)
    }
}
