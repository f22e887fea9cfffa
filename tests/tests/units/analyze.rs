//! systemd-analyze on the units.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use anyhow::{Result, ensure};
use ringtune_coordinator::service::STORE_PATIENCE;
use ringtune_shared::daemon::lifecycle::DRAIN_LIMIT;
use ringtune_tests::{
    Sandbox,
    process::finish,
    tools::has,
    unit_file::{Specifiers, UNITS, Unit, folder},
};
use ringtune_worker::settings::END_LIMIT;
use tokio::process::Command;

/// Exposure of 2.0, of 10.
const MOST_EXPOSED: &str = "--threshold=20";

/// A root with the units, and programs of the names that they start.
fn installed(sandbox: &Sandbox) -> Result<String> {
    let root = sandbox.path("root");
    let units = root.join("etc/systemd/system");
    for folder in [&units, &root.join("usr/bin"), &root.join("bin")] {
        fs::create_dir_all(folder)?;
    }
    for program in ["usr/bin/ringtune-coordinator", "usr/bin/ringtune-worker", "usr/bin/taskset", "bin/kill"]
    {
        fs::write(root.join(program), "#!/bin/sh\n")?;
        fs::set_permissions(root.join(program), fs::Permissions::from_mode(0o755))?;
    }
    for unit in UNITS {
        fs::copy(folder().join(unit), units.join(unit))?;
    }
    Ok(format!("--root={}", root.display()))
}

async fn analyze(arguments: &[&str]) -> Result<ringtune_tests::process::Finished> {
    finish(Command::new("systemd-analyze").args(arguments)).await
}

#[tokio::test]
async fn systemd_understands_every_line() -> Result<()> {
    if !has(&["systemd-analyze"], "systemd")? {
        return Ok(());
    }
    let sandbox = Sandbox::new()?;
    let root = installed(&sandbox)?;
    // Without the mode an unknown key is only a warning.
    let usual = ["verify", &root, "--recursive-errors=no", "--man=no"];
    for unit in ["ringtune-coordinator.service", "ringtune-worker.service", "ringtune-worker@0.service"] {
        let verified = analyze(&[&usual[..], &[unit]].concat()).await?.expect_code(0)?;
        ensure!(verified.stderr.trim().is_empty(), "{unit}: {}", verified.stderr);
        // It would say so.
        let name = if unit.contains('@') { "ringtune-worker@.service" } else { unit };
        let path = sandbox.path("root/etc/systemd/system").join(name);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, text.replace("WatchdogSec=", "WatchdogSecs="))?;
        let broken = analyze(&[&usual[..], &[unit]].concat()).await?;
        ensure!(broken.stderr.contains("WatchdogSecs"), "{unit}: {broken:?}");
        fs::write(&path, text)?;
    }
    Ok(())
}

#[tokio::test]
async fn the_services_are_confined() -> Result<()> {
    if !has(&["systemd-analyze"], "systemd")? {
        return Ok(());
    }
    for unit in UNITS {
        let path = folder().join(unit);
        let path = path.to_string_lossy();
        analyze(&["security", "--offline=true", MOST_EXPOSED, &path]).await?.expect_code(0)?;
    }
    // And it would say so.
    let sandbox = Sandbox::new()?;
    let open = sandbox.path("ringtune-open.service");
    let text = fs::read_to_string(folder().join("ringtune-worker.service"))?;
    fs::write(&open, text.replace("SystemCallFilter", "#SystemCallFilter"))?;
    let exposed = analyze(&["security", "--offline=true", MOST_EXPOSED, &open.to_string_lossy()]).await?;
    ensure!(exposed.code != Some(0), "{}", exposed.stdout);
    Ok(())
}

#[test]
fn the_times_of_the_units_fit_those_of_the_daemons() -> Result<()> {
    let coordinator = Unit::read("ringtune-coordinator.service", Specifiers::of(""))?;
    let second = Duration::from_secs(1);
    ensure!(coordinator.seconds("TimeoutStopSec")? >= DRAIN_LIMIT + 5 * second);
    // A store that fails ends the loop long before a watchdog would; nothing else may.
    ensure!(coordinator.seconds("WatchdogSec")? >= 4 * STORE_PATIENCE);
    for name in ["ringtune-worker.service", "ringtune-worker@.service"] {
        let worker = Unit::read(name, Specifiers::of("0"))?;
        // The session's end, its last words, and the engine's.
        ensure!(worker.seconds("TimeoutStopSec")? >= END_LIMIT + DRAIN_LIMIT + 5 * second, "{name}");
        ensure!(worker.seconds("WatchdogSec")? >= 30 * second, "{name}");
        ensure!(worker.one("MemoryDenyWriteExecute")? == "no", "{name}: oneDNN's kernels");
    }
    Ok(())
}

#[test]
fn both_workers_are_confined_alike() -> Result<()> {
    let confinement = |name: &str| -> Result<String> {
        let text = fs::read_to_string(Path::new(&folder()).join(name))?;
        Ok(text.split_once("# Jobs read models").map_or_else(String::new, |(_, rest)| rest.to_owned()))
    };
    let one = confinement("ringtune-worker.service")?;
    ensure!(!one.is_empty() && one == confinement("ringtune-worker@.service")?);
    Ok(())
}
