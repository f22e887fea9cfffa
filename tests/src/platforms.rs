//! Programs of the platforms on which Ringtune runs: helm, cfn-lint, and a Python that plays them.

use std::path::Path;

use anyhow::Result;
use tokio::process::Command;

use crate::{places, process::finish};

/// One of them; they are installed at the first time.
///
/// # Errors
/// They cannot be installed.
pub async fn tool(name: &str) -> Result<Command> {
    let script = places::repository().join("tests/platforms/ensure.sh");
    let folder = finish(&mut Command::new(script)).await?.expect_code(0)?.stdout;
    Ok(Command::new(Path::new(folder.trim()).join("bin").join(name)))
}
