//! Programs that a test needs and a machine may lack.

use std::{env, path::PathBuf};

use anyhow::{Result, bail};

use crate::chaos::say;

/// Set where every tool is installed, as in continuous integration: there a missing one is a failure.
const REQUIRED: &str = "RINGTUNE_REQUIRE_TOOLS";

/// Where a program of a Debian package is. None, which is said: it is not installed, and the test has nothing to do.
///
/// # Errors
/// It is missing where it has to be there.
pub fn find(program: &str, package: &str) -> Result<Option<PathBuf>> {
    let path = env::var_os("PATH").unwrap_or_default();
    // What only root runs is not in everybody's PATH.
    let folders = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let found = folders.map(|folder| folder.join(program)).find(|path| path.is_file());
    if found.is_none() {
        if env::var_os(REQUIRED).is_some_and(|value| value == "1") {
            bail!("{program} is missing (apt-get install {package}), and {REQUIRED} is 1");
        }
        say(&format!("SKIPPED: this needs {program} (apt-get install {package})"));
    }
    Ok(found)
}

/// Whether all these programs of a Debian package are there; what [`find`] does of each.
///
/// # Errors
/// As there.
pub fn has(programs: &[&str], package: &str) -> Result<bool> {
    for program in programs {
        if find(program, package)?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}
