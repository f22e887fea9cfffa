//! The programs of the last release, which `tests/upgrade/release.sh` builds.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;

use crate::{
    Finished, Launch, Sandbox,
    daemon::{COORDINATOR, WORKER},
    process::finish,
};

/// Folder of a release's built programs.
#[derive(Clone, Debug)]
pub struct Released {
    folder: PathBuf,
    /// "0.2.0".
    pub version: String,
}

impl Released {
    /// The programs in the folder that RINGTUNE_RELEASED names.
    ///
    /// # Errors
    /// It is not set, or the programs are not there.
    pub async fn find() -> Result<Self> {
        let Some(folder) = std::env::var_os("RINGTUNE_RELEASED").map(PathBuf::from) else {
            bail!(
                "RINGTUNE_RELEASED does not name the folder of the last release's programs: run `make upgrade-test`"
            )
        };
        let mut command = Command::new(folder.join("ringtune"));
        let asked = finish(command.arg("--version").stdin(Stdio::null())).await?.expect_code(0)?;
        let version = asked.stdout.trim().strip_prefix("ringtune ").context("a version")?.to_owned();
        ensure!(version != ringtune_shared::version::VERSION, "the last release is this version");
        Ok(Self { folder, version })
    }

    /// Path of a program.
    pub fn program(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    /// Its coordinator.
    pub fn coordinator(&self) -> Launch {
        Launch { program: self.program(COORDINATOR), ..Launch::coordinator() }
    }

    /// Its worker.
    pub fn worker(&self, label: &str, coordinator: &str) -> Launch {
        Launch::worker(label, &self.program(WORKER), coordinator)
    }

    /// Runs its `ringtune` command, at home in this sandbox, with the coordinator at HOST:PORT.
    ///
    /// # Errors
    /// It does not start or does not end.
    pub async fn finish(&self, sandbox: &Sandbox, coordinator: &str, arguments: &[&str]) -> Result<Finished> {
        let mut command = Command::new(Path::new(&self.folder).join("ringtune"));
        command
            .args(arguments)
            .current_dir(sandbox.folder())
            .env("XDG_STATE_HOME", sandbox.path("state"))
            .env("NO_COLOR", "1")
            .env("RINGTUNE_COORDINATOR", coordinator);
        finish(&mut command).await
    }
}
