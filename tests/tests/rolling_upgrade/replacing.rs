//! Daemons of the last release are replaced by this build's, one after the other.

use anyhow::{Result, ensure};
use ringtune_proto::v1::JobState;
use ringtune_shared::version::VERSION;
use ringtune_tests::{
    Sandbox,
    daemon::{COORDINATOR, WORKER},
    job::text,
    released::Released,
    wait::{SOON, until},
};

use crate::stage::{
    at_step, job, learned, numbers, of_release, succeeded, upgrade, upgrade_drained, workers,
};

const STEPS: u32 = 60;

#[tokio::test]
#[ignore = "needs the last release's programs: make upgrade-test"]
async fn a_cluster_is_upgraded_daemon_by_daemon_and_its_jobs_learn_the_same() -> Result<()> {
    let released = Released::find().await?;
    let sandbox = Sandbox::new()?;
    let mut cluster = of_release(&sandbox, &released).await?;
    ensure!(cluster.summary().await?.version == released.version);
    let file = text(&sandbox.write_job("job.toml", &job("upgraded", STEPS, 2)?)?);
    let submit = ["submit", file.as_str()];
    let old = async |arguments: &[&str]| released.finish(&sandbox, &cluster_url(&cluster), arguments).await;

    // 1. What the release itself comes to.
    let first = old(&submit).await?.expect_code(0)?.stdout.trim().to_owned();
    let expected = learned(&succeeded(&cluster, &first, STEPS.into()).await?)?;

    // 2. The coordinator is replaced while a job runs: same ring, same bytes.
    let running = old(&submit).await?.expect_code(0)?.stdout.trim().to_owned();
    at_step(&cluster, &running, 5, 2).await?;
    upgrade(&mut cluster, "coordinator", COORDINATOR).await?;
    ensure!(cluster.summary().await?.version == VERSION);
    let before = cluster.job(&running).await?;
    ensure!(before.state() == JobState::Running, "the job is {:?}: {}", before.state(), before.state_reason);
    ensure!(before.step < i64::from(STEPS), "it was over before the coordinator was replaced");
    let out = succeeded(&cluster, &running, STEPS.into()).await?;
    ensure!(learned(&out)? == expected, "the embedding differs from the one of {}", released.version);

    // 3. A ring of the release that loses a member fails its job, and says why, as it did there.
    let endless = sandbox.write_job("endless.toml", &job("lost", 1_000_000, 2)?)?;
    let lost = cluster.submit(&endless).await?;
    at_step(&cluster, &lost, 2, 2).await?;
    cluster.daemon("worker-1")?.end().await?;
    let ended = cluster.wait_for_end(&lost).await?;
    ensure!(ended.state() == JobState::Failed, "the job is {:?}: {}", ended.state(), ended.state_reason);
    ensure!(ended.state_reason.contains("lost"), "{}", ended.state_reason);
    cluster.start_again("worker-1").await?;
    cluster.wait_for_idle(2).await?;

    // 4. A worker is replaced. Its kernels compute other bits: the two get no ring together, but each one alone.
    upgrade_drained(&mut cluster, "worker-2").await?;
    ensure!(workers(&cluster).await? == [released.version.clone(), VERSION.to_owned()].into());
    let waiting = cluster.submit(file.as_ref()).await?;
    until("the job says what it waits for", SOON, || async {
        let waits = cluster.job(&waiting).await?;
        let says = waits.state_reason.contains("2 free in 2 numerics classes");
        Ok((waits.state() == JobState::Queued && says).then_some(()))
    })
    .await?;
    let alone = sandbox.write_job("alone.toml", &job("alone", STEPS, 1)?)?;
    let alone = [cluster.submit(&alone).await?, cluster.submit(&alone).await?];
    for id in &alone {
        succeeded(&cluster, id, STEPS.into()).await?;
    }

    // 5. The last one is replaced: the job that waited has its ring, and leaves the same bytes as one that loses a member.
    upgrade_drained(&mut cluster, "worker-1").await?;
    ensure!(workers(&cluster).await? == [VERSION.to_owned()].into());
    let whole = learned(&succeeded(&cluster, &waiting, STEPS.into()).await?)?;
    let survives = job("survives", STEPS, 2)?.set("cluster.min_world_size", 1);
    let survives = cluster.submit(&sandbox.write_job("survives.toml", &survives)?).await?;
    at_step(&cluster, &survives, 5, 2).await?;
    cluster.daemon("worker-1")?.end().await?;
    let out = succeeded(&cluster, &survives, STEPS.into()).await?;
    ensure!(numbers(&learned(&out)?)? == numbers(&whole)?, "a ring that lost a member learns something else");
    Ok(())
}

fn cluster_url(cluster: &ringtune_tests::Cluster<'_>) -> String {
    format!("http://{}", cluster.coordinator.grpc)
}

/// A worker of the release that is drained while it has a rank keeps it to the end of the job: nothing is lost by it.
#[tokio::test]
#[ignore = "needs the last release's programs: make upgrade-test"]
async fn a_drained_worker_of_the_last_release_does_its_job_to_the_end() -> Result<()> {
    let released = Released::find().await?;
    let sandbox = Sandbox::new()?;
    let mut cluster = of_release(&sandbox, &released).await?;
    upgrade(&mut cluster, "coordinator", COORDINATOR).await?;
    cluster.wait_for_idle(2).await?;
    let file = sandbox.write_job("job.toml", &job("drained", STEPS, 2)?)?;
    let id = cluster.submit(&file).await?;
    at_step(&cluster, &id, 2, 2).await?;
    let worker = cluster.daemon("worker-1")?.id.clone();
    cluster.finish(&["drain", &worker]).await?.expect_code(0)?;
    succeeded(&cluster, &id, STEPS.into()).await?;
    let listed = cluster.list_workers().await?;
    ensure!(listed.iter().any(|known| known.worker_id == worker && known.draining), "{listed:?}");
    // It has nothing left to do, and ends at once.
    upgrade(&mut cluster, "worker-1", WORKER).await
}
