//! Workers that link no libtorch: everything around the engine, end to end.

use std::{
    fs,
    net::Ipv4Addr,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_fake_engine::FakeEngine;
use ringtune_tests::{
    Cluster, Job, Launch, Sandbox, Visitor, daemon::COORDINATOR, job::text, places, process::finish,
};
use safetensors::SafeTensors;
use tokio::process::Command;

/// Runs a job on so many of them and gives the embedding that it learned.
async fn learned_by(workers: usize) -> Result<Vec<u8>> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start_fake(&sandbox, workers).await?;
    let job = Job::toy()?
        .set("train.num_vectors", 2)
        .set("train.save_steps", 2)
        .set("train.max_train_steps", 5)
        .shared_by(2);
    let id = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    let ended = cluster.wait_for_success(&id).await?;
    ensure!(ended.step == 5, "it made {} steps", ended.step);
    for worker in cluster.workers.iter().filter(|_| workers > 1) {
        // They are on one machine, so that nothing of the ring goes through their ports.
        let page = Visitor::plain().get(worker.http.parse()?, Ipv4Addr::LOCALHOST, "/metrics").await?;
        let streams = |way: &str| {
            let name = format!("ringtune_worker_ring_streams_total{{way=\"{way}\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&name)).context("no such metric")
        };
        ensure!(streams("memory")? != "0" && streams("tcp")? == "0", "{page}");
    }
    cluster.learned(&id, "output").await
}

#[tokio::test]
async fn a_worker_without_libtorch_does_whole_jobs() -> Result<()> {
    let alone = learned_by(1).await?;
    let tensors = SafeTensors::deserialize(&alone)?;
    let learned = tensors.tensor("<green-star>")?;
    ensure!(learned.shape() == [2, FakeEngine::TEXT_WIDTH], "of the shape {:?}", learned.shape());
    ensure!(learned_by(2).await? == alone, "two ranks learn something else than one");
    Ok(())
}

/// Everything in a folder, itself included; links are not followed. Daemons that run may remove a part of it meanwhile.
fn all_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![folder.to_owned()];
    let Some(entries) = if_there(fs::read_dir(folder))? else { return Ok(Vec::new()) };
    for entry in entries {
        let path = entry?.path();
        match if_there(path.symlink_metadata())? {
            Some(about) if about.is_dir() => found.extend(all_in(&path)?),
            Some(_) => found.push(path),
            None => (),
        }
    }
    Ok(found)
}

fn if_there<T>(read: std::io::Result<T>) -> Result<Option<T>> {
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => Ok(Some(read?)),
    }
}

/// That nobody but its owner reads or enters anything of a folder, of which `among` is a part.
fn expect_private(folder: &Path, among: &[&str]) -> Result<()> {
    let found = all_in(folder)?;
    for name in among {
        ensure!(found.iter().any(|path| path.ends_with(name)), "no {name} among {found:?}");
    }
    for path in found {
        let Some(about) = if_there(path.symlink_metadata())? else { continue };
        let mode = about.permissions().mode() & 0o7777;
        let right = if about.is_dir() { 0o700 } else { mode & 0o700 };
        ensure!(about.is_symlink() || mode == right, "{} has the mode {mode:o}", path.display());
    }
    Ok(())
}

#[tokio::test]
async fn what_daemons_keep_is_for_their_user_alone() -> Result<()> {
    const UMASK: [&str; 4] = ["sh", "-c", "umask 000 && exec \"$@\"", "sh"];
    let careless = |launch: Launch| Launch { wrapper: UMASK.map(str::to_owned).to_vec(), ..launch };
    let sandbox = Sandbox::new()?;
    let [coordinator, worker] = ["coordinator", "worker-1"].map(|label| sandbox.path(label));
    let launch = careless(Launch::coordinator().over_tls());
    let mut cluster = Cluster::start_fake_with(&sandbox, launch, 1, careless).await?;

    // 1. While a job runs, and in what has been kept of it.
    let job = Job::toy()?.set("train.save_steps", 2).set("train.max_train_steps", 1_000_000);
    let job = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    cluster.wait_for_step(&job, 5).await?;
    let parts = [
        ["ringtune.sqlite", "contents/sha256", "authority/root-0001.pem", "admin", "lock"],
        ["worker-id", "cache", "latents", "work", "credentials"],
    ];
    cluster.signal("worker-1", rustix::process::Signal::STOP)?;
    for (folder, among) in [&coordinator, &worker].into_iter().zip(&parts) {
        expect_private(folder, among)?;
    }
    cluster.signal("worker-1", rustix::process::Signal::CONT)?;

    // 2. In a backup, and in what comes of it.
    let [backup, restored] = ["backup", "restored"].map(|name| sandbox.path(name));
    let copy = async |flags: [&str; 5]| {
        let mut command = Command::new(UMASK[0]);
        command.args(&UMASK[1..]).arg(places::program(COORDINATOR)?).args(flags);
        finish(&mut command).await?.expect_code(0)
    };
    // Flags of the daemon stand before the subcommand, or behind it.
    copy(["--state-dir", &text(&coordinator), "backup", "--to", &text(&backup)]).await?;
    expect_private(&backup, &["backup.json", "ringtune.sqlite", "contents/sha256", "authority"])?;
    fs::set_permissions(backup.join("ringtune.sqlite"), fs::Permissions::from_mode(0o644))?;
    copy(["restore", "--from", &text(&backup), "--state-dir", &text(&restored)]).await?;
    expect_private(&restored, &parts[0][..3])?;

    // 3. As an earlier release would have left it. Where a link leads, all stays as it is.
    let elsewhere = sandbox.path("elsewhere");
    fs::create_dir(&elsewhere)?;
    for (label, folder) in [("coordinator", &coordinator), ("worker-1", &worker)] {
        cluster.daemon(label)?.end().await?;
        for path in all_in(folder)?.into_iter().chain([elsewhere.clone()]).filter(|path| !path.is_symlink()) {
            let mode = if path.is_dir() { 0o755 } else { 0o644 };
            // Of keys earlier releases took care.
            let is_secret = path.components().any(|part| part.as_os_str() == "admin")
                || path.to_string_lossy().contains("authority");
            if !is_secret && !path.to_string_lossy().contains("credentials") && path.exists() {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            }
        }
        symlink(
            &elsewhere,
            folder.join(if label == "coordinator" { "contents" } else { "cache" }).join("link"),
        )?;
        cluster.start_again(label).await?;
        expect_private(folder, &[])?;
        let log = fs::read_to_string(sandbox.path(&format!("{label}.log")))?;
        ensure!(log.contains("for this user alone now"), "nothing is said of it:\n{log}");
    }
    ensure!(fs::metadata(&elsewhere)?.permissions().mode() & 0o777 == 0o755, "a link was followed");
    Ok(())
}
