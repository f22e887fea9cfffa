//! Programs of the platforms on which Ringtune runs: helm, cfn-lint, the awscli, and a Python that plays clouds.

use std::path::{Path, PathBuf};

use anyhow::Result;
use tokio::process::Command;

use crate::{places, process::finish};

/// The folder with all of them; they are installed at the first time.
///
/// # Errors
/// They cannot be installed.
pub async fn programs() -> Result<PathBuf> {
    let script = places::repository().join("tests/platforms/ensure.sh");
    let folder = finish(&mut Command::new(script)).await?.expect_code(0)?.stdout;
    Ok(Path::new(folder.trim()).join("bin"))
}

/// One of them.
///
/// # Errors
/// They cannot be installed.
pub async fn tool(name: &str) -> Result<Command> {
    Ok(Command::new(programs().await?.join(name)))
}
