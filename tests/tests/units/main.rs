//! The systemd units: systemd's own opinion of them, and the services as systemd would start them. systemd itself does not run
//! here, so the tests stand in for it: they read each unit and do what it says.

mod analyze;
mod documents;
mod root;
mod services;
mod settings;
mod unit_file;
mod watchdog;

use std::{path::Path, time::Duration};

use anyhow::{Result, bail};
use ringtune_tests::chaos::say;

/// Whether all of these tools are there. A run that wants them all (`RINGTUNE_REQUIRE_TOOLS=1`) fails without.
fn has(tools: &[&str], package: &str) -> Result<bool> {
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
    let missing =
        tools.iter().find(|tool| !folders.iter().any(|folder| Path::new(folder).join(tool).exists()));
    match missing {
        None => Ok(true),
        Some(tool) if std::env::var_os("RINGTUNE_REQUIRE_TOOLS").is_some_and(|value| value == "1") => {
            bail!("{tool} is missing: apt-get install {package}")
        }
        Some(tool) => {
            say(&format!("SKIPPED: {tool} is missing (apt-get install {package})"));
            Ok(false)
        }
    }
}

/// Whether a root of its own can be made.
fn can_make_roots() -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        say("SKIPPED: a root of its own and another user need root");
        return Ok(false);
    }
    Ok(has(&["systemd-sysusers", "systemd-tmpfiles"], "systemd")?
        && has(&["unshare", "mount", "setpriv", "taskset", "ldd"], "util-linux mount libc-bin")?
        && has(&["ip"], "iproute2")?)
}

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(30);
