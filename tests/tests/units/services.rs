//! Each service, started as its unit says: ready, watched over, reloaded, ended.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use ringtune_tests::{
    process::send_signal,
    unit_file::{Specifiers, Unit},
    wait::SOON,
};
use rustix::process::Signal;

use crate::{
    PAUSE,
    root::{Root, Service},
};

/// What a service said until something was among it.
async fn until(service: &mut Service, heard: &mut Vec<String>, wanted: &str, limit: Duration) -> Result<()> {
    let waiting = async {
        loop {
            heard.extend(service.heard()?);
            if heard.iter().any(|message| message.contains(wanted)) {
                return Ok(());
            }
            if let Some(status) = service.child.try_wait()? {
                bail!("it ended ({status}) before {wanted:?}");
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let waited = tokio::time::timeout(limit, waiting).await;
    let what = waited.with_context(|| format!("not within {} s: {wanted:?}", limit.as_secs()));
    what.and_then(|found| found).with_context(|| format!("heard {heard:?}\nlog:\n{}", service.log()))
}

/// SIGTERM: it says that it ends, and does so in time with exit code 0.
async fn stops(service: &mut Service, unit: &Unit) -> Result<()> {
    let mut heard = Vec::new();
    send_signal(&service.child, Signal::TERM)?;
    let ended = tokio::time::timeout(unit.seconds("TimeoutStopSec")?, service.child.wait()).await;
    let status = ended.context("it does not end in time")??;
    heard.extend(service.heard()?);
    ensure!(status.code() == Some(0), "{status}\n{}", service.log());
    ensure!(heard.iter().any(|message| message.contains("STOPPING=1")), "{heard:?}");
    Ok(())
}

/// SIGHUP: it reads its settings, says what needs a restart, and leaves all as it is where they cannot be used.
async fn reloads(service: &mut Service, root: &Root, file: &str) -> Result<()> {
    let path = root.path(file);
    let usual = fs::read_to_string(&path)?;
    for (text, said) in [
        (format!("{usual}\n[debug.]\n"), "cannot be used; nothing was changed"),
        (
            usual
                .replace("#filter = \"info\"", "filter = \"debug\"")
                .replace("#listen", "listen")
                .replace("listen = \"127.0.0.1:70", "listen = \"127.0.0.1:60"),
            "needs a restart: ",
        ),
    ] {
        fs::write(&path, text)?;
        let mut heard = service.heard()?;
        heard.clear();
        send_signal(&service.child, Signal::HUP)?;
        until(service, &mut heard, "RELOADING=1\nMONOTONIC_USEC=", SOON).await?;
        until(service, &mut heard, "READY=1", SOON).await?;
        ensure!(service.log().contains(said), "{said:?} was not said:\n{}", service.log());
    }
    let log = service.log();
    ensure!(log.contains("grpc.listen, http.listen") && log.contains("log.filter"), "{log}");
    Ok(())
}

#[tokio::test]
async fn the_coordinator_serves_as_its_unit_says() -> Result<()> {
    let Some(root) = Root::new().await? else { return Ok(()) };
    let unit = Unit::read("ringtune-coordinator.service", Specifiers::of(""))?;
    let mut heard = Vec::new();
    let mut service = root.start(&unit, &[]).await?;
    until(&mut service, &mut heard, "READY=1", unit.seconds("TimeoutStartSec")?).await?;
    until(&mut service, &mut heard, "STATUS=0 jobs run, 0 wait, 0 workers", SOON).await?;
    until(&mut service, &mut heard, "WATCHDOG=1", SOON).await?;
    reloads(&mut service, &root, "/etc/ringtune/coordinator.toml").await?;
    stops(&mut service, &unit).await?;
    // What it keeps is its own.
    let state = root.path("/var/lib/ringtune/ringtune.sqlite");
    ensure!(state.is_file(), "no {}", state.display());
    Ok(())
}

#[tokio::test]
async fn a_worker_serves_as_its_unit_says() -> Result<()> {
    let Some(root) = Root::new().await? else { return Ok(()) };
    let unit = Unit::read("ringtune-worker.service", Specifiers::of(""))?;
    let mut heard = Vec::new();
    let mut service = root.start(&unit, &[]).await?;
    // Without a coordinator, and without a token.
    until(&mut service, &mut heard, "READY=1", unit.seconds("TimeoutStartSec")?).await?;
    until(&mut service, &mut heard, "STATUS=the coordinator cannot be reached: ", SOON).await?;
    until(&mut service, &mut heard, "WATCHDOG=1", SOON).await?;
    reloads(&mut service, &root, "/etc/ringtune/worker.toml").await?;
    stops(&mut service, &unit).await
}

#[tokio::test]
async fn a_worker_of_a_socket_has_its_processors_and_a_folder_of_its_own() -> Result<()> {
    let Some(root) = Root::new().await? else { return Ok(()) };
    let unit = Unit::read("ringtune-worker@.service", Specifiers::of("0"))?;
    let mut heard = Vec::new();
    // This machine may have one processor alone.
    let file = root.path("/etc/ringtune/worker-0.env");
    let text = fs::read_to_string(&file)?;
    ensure!(text.contains("RINGTUNE_CPUS=0-27\n"), "{text}");
    fs::write(&file, text.replace("RINGTUNE_CPUS=0-27", "RINGTUNE_CPUS=0"))?;
    let mut service = root.start(&unit, &[]).await?;
    until(&mut service, &mut heard, "READY=1", unit.seconds("TimeoutStartSec")?).await?;
    let process = service.child.id().context("it runs")?;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        let has = |line: &str| status.lines().any(|found| found == line);
        ensure!(has("Cpus_allowed_list:\t0"), "{status}");
        ensure!(has("NoNewPrivs:\t1") && has("CapBnd:\t0000000000000000"), "{status}");
        ensure!(!status.contains("Uid:\t0"), "{status}");
    }
    stops(&mut service, &unit).await?;
    ensure!(root.path("/var/lib/ringtune-worker-0/lock").is_file());
    Ok(())
}

#[tokio::test]
async fn a_service_manager_that_is_gone_is_no_reason_to_end() -> Result<()> {
    let Some(root) = Root::new().await? else { return Ok(()) };
    let unit = Unit::read("ringtune-coordinator.service", Specifiers::of(""))?;
    for (address, said) in [
        ("/run/no-such-socket", "the service manager does not hear this daemon"),
        ("nonsense", "NOTIFY_SOCKET cannot be used"),
    ] {
        let mut service = root.start(&unit, &[("NOTIFY_SOCKET", address)]).await?;
        let listens = async {
            while !service.log().contains("\"listening\"") {
                ensure!(service.child.try_wait()?.is_none(), "it ended");
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        };
        tokio::time::timeout(SOON, listens)
            .await
            .context("it does not listen")
            .and_then(|done| done)
            .with_context(|| service.log())?;
        send_signal(&service.child, Signal::TERM)?;
        let status = tokio::time::timeout(SOON, service.child.wait()).await??;
        let log = service.log();
        ensure!(status.code() == Some(0) && log.matches(said).count() == 1, "{status}\n{log}");
    }
    Ok(())
}
