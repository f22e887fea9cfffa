//! A cluster on TLS with a job that runs, a real Prometheus that scrapes all of it, and what both show.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::JobState;
use ringtune_tests::{
    Cluster, Job, Launch, Sandbox,
    daemon::FAKE_WORKER,
    wait::{SOON, until},
};
use serde_json::Value;

use crate::{
    dashboard,
    metrics::{expect_conventions, shown_by, value},
    tools::{self, Prometheus},
};

/// More steps than the test waits for.
const STEPS: i64 = 100_000;

/// Two workers; the second computes three times as long as the first.
async fn start(sandbox: &Sandbox) -> Result<Cluster<'_>> {
    let launch = Launch::coordinator().over_tls().logging_json();
    let mut cluster = Cluster::start_coordinator(sandbox, launch).await?;
    for (number, takes) in [(1, "20"), (2, "60")] {
        let launch = Launch::worker(&format!("worker-{number}"), FAKE_WORKER, &cluster.coordinator.grpc);
        cluster.add_worker(launch.flags(["--gradient-takes", takes]).logging_json()).await?;
    }
    cluster.wait_for_idle(2).await?;
    Ok(cluster)
}

/// The example in deploy/prometheus, with what it says to do first, at these addresses and a hundred times as often; and what it
/// scrapes by two more who look.
async fn configuration(cluster: &Cluster<'_>, sandbox: &Sandbox) -> Result<String> {
    let observer =
        ["token", "create", "--role", "observer", "--name", "prometheus", "--access", "--ttl", "90d"];
    for (name, command) in [("token", &observer[..]), ("roots.pem", &["ca", "show", "--pem"])] {
        fs::write(sandbox.path(name), cluster.finish(command).await?.expect_code(0)?.stdout)?;
    }
    let folder = ringtune_tests::places::repository().join("deploy/prometheus");
    let example = fs::read_to_string(folder.join("prometheus.yml"))?;
    let example = example
        .replace("ringtune.rules.yml", &folder.join("ringtune.rules.yml").to_string_lossy())
        .replace("/etc/prometheus/ringtune", &sandbox.folder().to_string_lossy())
        .replace("10.0.0.1:7071", &cluster.coordinator.http)
        .replace("scrape_interval: 15s", "scrape_interval: 100ms")
        .replace("evaluation_interval: 15s", "evaluation_interval: 1s");
    let (_, scrapes) = example.split_once("scrape_configs:\n").context("what it scrapes")?;
    let more = ["b", "c"].map(|more| scrapes.replace("job_name: ringtune-", &format!("job_name: {more}-")));
    Ok(example.clone() + &more.concat())
}

#[tokio::test]
async fn every_panel_of_the_dashboard_shows_something_of_a_running_job() -> Result<()> {
    if !tools::are_here()? {
        return Ok(());
    }
    let sandbox = Sandbox::new()?;
    let mut cluster = start(&sandbox).await?;
    let written = sandbox.path("prometheus.yml");
    fs::write(&written, configuration(&cluster, &sandbox).await?)?;
    let prometheus = Prometheus::start(sandbox.folder(), &written).await?;
    prometheus.until_answered("count(up == 1) == 9").await.context("who is up")?;

    // 1. A job whose second rank is slow.
    let job = Job::toy()?
        .set("train.max_train_steps", STEPS)
        .set("cluster.world_size", 2)
        .set("cluster.min_world_size", 2);
    let job = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    cluster.wait_for_step(&job, 3).await?;
    prometheus.until_answered("ringtune_stragglers{job=\"ringtune-coordinator\"} == 1").await?;
    for question in dashboard::questions()? {
        prometheus.until_answered(&question.query).await.with_context(|| question.panel)?;
    }

    // 2. Nobody is held up by three who look ten times a second.
    // Half of what is due: a scrape is given up after the 100 ms in which the next one comes, and the machine may be busy.
    prometheus.until_answered("sum(sum_over_time(up[5s])) > 225").await?;
    let step = cluster.job(&job).await?.step;
    cluster.wait_for_step(&job, step + 20).await?;
    let firing = prometheus.ask("count(ALERTS{alertstate=\"firing\"}) or vector(0)").await?;
    ensure!(firing == [0.0], "{firing:?} alerts in a cluster that is well");

    // 3. Once the job is over, all metrics have values, and keep the conventions.
    cluster.finish(&["cancel", &job]).await?.expect_code(0)?;
    cluster.wait_for_state(&job, JobState::Cancelled).await?;
    let admin = sandbox.path("coordinator/admin");
    let coordinator = shown_by(&cluster.coordinator.http, &admin).await?;
    expect_conventions(&coordinator).await?;
    ensure!(value(&coordinator, "ringtune_jobs_ended_total{state=\"cancelled\"}")? == 1.0);
    ensure!(value(&coordinator, "ringtune_queue_wait_seconds_count")? == 1.0);
    ensure!(value(&coordinator, "ringtune_store_commit_seconds_count")? > 1.0);
    ensure!(value(&coordinator, "ringtune_sessions")? == 2.0);
    ensure!(value(&coordinator, "ringtune_stragglers")? == 0.0);
    for worker in &cluster.workers {
        let shown = shown_by(&worker.http, &admin).await?;
        expect_conventions(&shown).await?;
        let sum = |part: &str| value(&shown, &format!("ringtune_worker_{part}_seconds_sum"));
        let (step, parts) = (sum("step")?, sum("compute")? + sum("exchange")? + sum("wait")?);
        ensure!(parts > 0.5 * step && parts < 1.01 * step, "{parts} s of {step} s in {}", worker.label);
    }
    let wait = async |number: usize| {
        value(&shown_by(&cluster.workers[number].http, &admin).await?, "ringtune_worker_wait_seconds_sum")
    };
    ensure!(wait(0).await? > 2.0 * wait(1).await?, "the fast rank does not wait for the slow one");

    // 4. A worker that is gone is seen to be.
    let gone = cluster.workers[1].id.clone();
    cluster.daemon("worker-2")?.end().await?;
    prometheus.until_answered(&format!("up{{job=\"ringtune-workers\",worker=\"{gone}\"}} == 0")).await?;

    // 5. Lines about the job say which it is, and of which rank and epoch.
    for (label, rank) in [("coordinator", false), ("worker-1", true), ("worker-2", true)] {
        expect_lines(&sandbox, label, &job, rank).await.with_context(|| label)?;
    }
    Ok(())
}

/// All lines are JSON objects, and some are about the job.
async fn expect_lines(sandbox: &Sandbox, label: &str, job: &str, with_rank: bool) -> Result<()> {
    let log = sandbox.path(&format!("{label}.log"));
    let about = || async {
        let text = fs::read_to_string(&log)?;
        // The last one may be half-written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut found = 0;
        for line in whole.lines() {
            let line: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            if line["job"] == job && line["epoch"] == 1 && (!with_rank || line["rank"].is_u64()) {
                found += 1;
            }
        }
        Ok((found > 0).then_some(()))
    };
    until("lines about the job", SOON, about).await
}
