//! Resources that a node can run out of: disk, file descriptors, the right time.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::say;
use crate::{Daemon, Launch, Sandbox};

/// File that fills a disk.
const BALLAST: &str = "ballast";

/// A disk of its own for a daemon's state; it is gone when the daemon ends.
pub mod disk {
    use super::*;

    /// Whether this machine lets us; a loud line where not.
    pub fn may_mount() -> bool {
        let tried = Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).status();
        let may = tried.is_ok_and(|status| status.success());
        if !may {
            say("SKIPPED: mounting a small file system needs root");
        }
        may
    }

    /// The daemon's state will be on a disk of so many bytes.
    pub fn small(launch: Launch, sandbox: &Sandbox, bytes: u64) -> Launch {
        let folder = sandbox.path(&launch.state).to_string_lossy().into_owned();
        let script = format!(
            "mkdir -p '{folder}' && mount -t tmpfs -o size={bytes} none '{folder}' && exec \"$0\" \"$@\""
        );
        let wrapper = ["unshare", "-m", "sh", "-c", &script].map(str::to_owned).to_vec();
        Launch { wrapper, ..launch }
    }

    /// Fills the disk of a daemon to the last byte.
    pub fn fill(daemon: &Daemon, state: &Path) -> Result<()> {
        let mut file = File::create(ballast(daemon, state)?)?;
        let part = [0; 4096];
        while file.write_all(&part).is_ok() {}
        Ok(())
    }

    /// Fills it until so many bytes are free.
    pub fn crowd(daemon: &Daemon, state: &Path, free: u64) -> Result<()> {
        let path = ballast(daemon, state)?;
        let mut file = File::create(&path)?;
        let part = [0; 4096];
        loop {
            let about = rustix::fs::fstatvfs(&file)?;
            if about.f_bavail * about.f_frsize <= free {
                return Ok(());
            }
            file.write_all(&part)?;
        }
    }

    /// Makes room again.
    pub fn free(daemon: &Daemon, state: &Path) -> Result<()> {
        Ok(fs::remove_file(ballast(daemon, state)?)?)
    }

    /// In the daemon's own view of the file systems.
    fn ballast(daemon: &Daemon, state: &Path) -> Result<PathBuf> {
        let id = daemon.process_id().context("it has ended")?;
        Ok(PathBuf::from(format!("/proc/{id}/root{}", state.display())).join(BALLAST))
    }
}

/// Limits of a daemon's open files.
pub mod descriptors {
    use super::*;

    /// Takes a daemon the right to open any more file, and gives what it had.
    pub fn take(daemon: &Daemon) -> Result<Rlimit> {
        let id = daemon.process_id().context("it has ended")?;
        // Open files stay open; a new one would get a number above this.
        let maximum = getrlimit(Resource::Nofile).maximum;
        let had = prlimit(Pid::from_raw(id as i32), Resource::Nofile, Rlimit { current: Some(0), maximum })?;
        Ok(had)
    }

    /// Gives the right back.
    pub fn give(daemon: &Daemon, limit: Rlimit) -> Result<()> {
        let id = daemon.process_id().context("it has ended")?;
        prlimit(Pid::from_raw(id as i32), Resource::Nofile, limit)?;
        Ok(())
    }
}

/// The time of day of one daemon, by libfaketime; timers do not depend on it.
pub mod clock {
    use super::*;

    /// Path of the library of Debian's package; None, with a loud line, if it is missing.
    pub fn library() -> Option<PathBuf> {
        let folders = fs::read_dir("/usr/lib").into_iter().flatten().filter_map(Result::ok);
        let found = folders
            .map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"))
            .find(|library| library.is_file());
        if found.is_none() {
            say("SKIPPED: clocks that jump need libfaketime (apt-get install faketime)");
        }
        found
    }

    /// A daemon whose clock can be set; it starts with the right time.
    pub fn movable(launch: Launch, sandbox: &Sandbox, library: &Path) -> Result<Launch> {
        let file = sandbox.path(&format!("{}.clock", launch.label));
        fs::write(&file, "+0")?;
        Ok(launch
            .variable("LD_PRELOAD", &library.to_string_lossy())
            .variable("FAKETIME_TIMESTAMP_FILE", &file.to_string_lossy())
            .variable("FAKETIME_NO_CACHE", "1")
            .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .variable("DONT_FAKE_MONOTONIC", "1"))
    }

    /// From now on the daemon's clock is so many seconds off.
    pub fn jump(sandbox: &Sandbox, label: &str, seconds: i64) -> Result<()> {
        let file = sandbox.path(&format!("{label}.clock"));
        ensure!(file.is_file(), "the clock of {label} cannot be moved");
        // Replaced as a whole: it is read again and again.
        let next = sandbox.path(&format!("{label}.clock-next"));
        fs::write(&next, format!("{seconds:+}"))?;
        Ok(fs::rename(next, file)?)
    }
}
