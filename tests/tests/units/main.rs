//! The systemd units: systemd's own opinion of them, and the services as systemd would start them. systemd itself does not run
//! here, so the tests stand in for it: they read each unit and do what it says.

mod analyze;
mod documents;
mod root;
mod services;
mod settings;
mod watchdog;

use std::time::Duration;

use anyhow::Result;
use ringtune_tests::{chaos::say, tools::has};

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
