//! A cluster whose daemons are of one release or the other.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1;
use ringtune_tests::{
    Cluster, Job, Launch, Sandbox,
    daemon::WORKER,
    files::EMBEDDING,
    hub::{REPOSITORY, fill_cache},
    job::text,
    released::Released,
    wait::{SOON, until},
};
use rustix::process::Signal;

/// A job on a model that is in a hub's cache: what is stored and said of it names no folder of this machine.
pub(crate) fn job(name: &str, steps: u32, ranks: u32) -> Result<Job> {
    Ok(Job::toy()?
        .set("name", name)
        .set("model.base", format!("hf://{REPOSITORY}"))
        .set("train.max_train_steps", i64::from(steps))
        .set("cluster.world_size", i64::from(ranks)))
}

/// The hub's cache as workers find it.
pub(crate) fn with_model(launch: Launch, sandbox: &Sandbox) -> Result<Launch> {
    let home = sandbox.path("hf");
    if !home.exists() {
        fill_cache(&home, 0)?;
    }
    Ok(launch.variable("HF_HOME", &text(&home)).variable("HF_HUB_OFFLINE", "1"))
}

/// Starts a coordinator and two workers of the release.
pub(crate) async fn of_release<'a>(sandbox: &'a Sandbox, released: &Released) -> Result<Cluster<'a>> {
    let mut cluster = Cluster::start_coordinator(sandbox, released.coordinator()).await?;
    for label in ["worker-1", "worker-2"] {
        let launch = released.worker(label, &cluster.coordinator.grpc);
        cluster.add_worker(with_model(launch, sandbox)?).await?;
    }
    cluster.wait_for_idle(2).await?;
    Ok(cluster)
}

/// Tells a daemon to end, waits until it has, and starts this build's program on its state.
pub(crate) async fn upgrade(cluster: &mut Cluster<'_>, label: &str, program: &str) -> Result<()> {
    cluster.signal(label, Signal::TERM)?;
    let status = cluster.daemon(label)?.ended().await?;
    ensure!(status.success(), "{label} ended with {status}");
    cluster.start_again_as(label, program).await
}

/// Replaces a worker that has nothing to do, as docs/upgrading.md says.
pub(crate) async fn upgrade_drained(cluster: &mut Cluster<'_>, label: &str) -> Result<()> {
    let id = cluster.daemon(label)?.id.clone();
    cluster.finish(&["drain", &id]).await?.expect_code(0)?.expect_said(&["takes no new job"])?;
    upgrade(cluster, label, WORKER).await?;
    cluster.finish(&["undrain", &id]).await?.expect_code(0)?;
    cluster.wait_for_idle(2).await
}

/// The versions of the workers that are connected.
pub(crate) async fn workers(cluster: &Cluster<'_>) -> Result<BTreeSet<String>> {
    let listed = cluster.list_workers().await?.into_iter();
    let there = listed.filter(|worker| worker.state() != v1::WorkerState::Lost);
    Ok(there.filter_map(|worker| Some(worker.capabilities?.version)).collect())
}

/// Waits for the end of a job that is to succeed, looks whether each of its steps is there once, and saves its files.
pub(crate) async fn succeeded(cluster: &Cluster<'_>, id: &str, steps: i64) -> Result<PathBuf> {
    cluster.wait_for_success(id).await?;
    let listed: Vec<i64> = cluster.steps(id).await?.iter().map(|step| step.step).collect();
    ensure!(listed == (1..=steps).collect::<Vec<_>>(), "the steps are {listed:?}");
    cluster.fetch(id, &format!("out-{id}")).await
}

/// The learned embedding of a job, as it was saved.
pub(crate) fn learned(out: &Path) -> Result<Vec<u8>> {
    let path = out.join(EMBEDDING);
    fs::read(&path).with_context(|| path.display().to_string())
}

/// The tensors of a file, without its header, which names the version that made it.
pub(crate) fn numbers(file: &[u8]) -> Result<&[u8]> {
    let length: [u8; 8] = file.get(..8).context("a length")?.try_into()?;
    file.get(8 + usize::try_from(u64::from_le_bytes(length))?..).context("a header")
}

/// Waits until a job is at a step in a ring of so many ranks.
pub(crate) async fn at_step(cluster: &Cluster<'_>, id: &str, step: i64, ranks: usize) -> Result<()> {
    cluster.wait_for_step(id, step).await?;
    until("the ring has its ranks", SOON, || async {
        let ring = cluster.job(id).await?.ring.unwrap_or_default();
        Ok((ring.members.len() == ranks).then_some(()))
    })
    .await
}
