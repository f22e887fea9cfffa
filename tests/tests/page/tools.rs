//! Programs that a test needs and a machine may lack.

use std::{env, path::PathBuf};

use anyhow::{Result, bail};

/// Set where every tool is installed: there a missing one is a failure.
const REQUIRED: &str = "RINGTUNE_REQUIRE_TOOLS";

/// Where a program is. None, which is said: it is not installed, and the test has nothing to do.
#[allow(clippy::print_stderr)]
pub(crate) fn find(program: &str, package: &str) -> Result<Option<PathBuf>> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file());
    if found.is_none() {
        if env::var_os(REQUIRED).is_some_and(|value| value == "1") {
            bail!("{program} is missing (apt-get install {package}), and {REQUIRED} is 1");
        }
        eprintln!("SKIPPED: this needs {program} (apt-get install {package})");
    }
    Ok(found)
}
