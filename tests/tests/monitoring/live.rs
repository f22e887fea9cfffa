//! A cluster on TLS with a job that runs, a real Prometheus that scrapes all of it, and what both show.

use std::{fs, path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::JobState;
use ringtune_tests::{
    Cluster, Daemon, Job, Launch, Sandbox,
    daemon::FAKE_WORKER,
    process::finish_child,
    wait::{SOON, until},
};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

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

/// What Prometheus has, as the example in deploy/prometheus says: a token for the coordinator, and a login for workers.
struct Observer {
    token: PathBuf,
    roots: PathBuf,
    /// A folder with the certificate and its key.
    login: PathBuf,
    cluster: String,
}

impl Observer {
    async fn of(cluster: &Cluster<'_>, sandbox: &Sandbox) -> Result<Self> {
        let observer = ["token", "create", "--role", "observer", "--name", "prometheus"];
        let access = cluster.finish(&[&observer[..], &["--access", "--ttl", "90d"]].concat()).await?;
        let (token, roots) = (sandbox.path("token"), sandbox.path("roots.pem"));
        fs::write(&token, access.expect_code(0)?.stdout.trim())?;
        fs::write(&roots, cluster.finish(&["ca", "show", "--pem"]).await?.expect_code(0)?.stdout)?;
        let join = cluster.finish(&observer).await?.expect_code(0)?.stdout;
        let url = cluster.coordinator.door().url();
        let home = sandbox.path("prometheus-home");
        let mut login = sandbox.ringtune(&["login", &url])?;
        login
            .env("XDG_CONFIG_HOME", &home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut login = login.spawn()?;
        login.stdin.take().context("stdin")?.write_all(join.as_bytes()).await?;
        finish_child(login).await?.expect_code(0)?;
        let folder = cluster.coordinator.grpc.replace(':', "_");
        let who = cluster.finish(&["whoami", "--output", "json"]).await?.expect_code(0)?.json_lines()?;
        let cluster =
            who.first().and_then(|who| who["cluster"].as_str()).context("which cluster")?.to_owned();
        Ok(Self { token, roots, login: home.join("ringtune/credentials").join(folder), cluster })
    }

    /// Scrapes `daemon` every 100 ms. `job`: as the rules call it; `name`: this scrape alone.
    fn scrape(&self, (name, job): (&str, &str), daemon: &Daemon, proof: &str) -> String {
        let (roots, http) = (self.roots.display(), &daemon.http);
        format!(
            "  - job_name: {name}\n    scheme: https\n    scrape_interval: 100ms\n    scrape_timeout: 100ms\n    \
             static_configs: [{{targets: ['{http}'], labels: {{job: {job}}}}}]\n    \
             tls_config: {{ca_file: {roots}{proof}}}\n"
        )
    }

    fn coordinator(&self, names: (&str, &str), daemon: &Daemon) -> String {
        let token = self.token.display();
        let scrape = self.scrape(names, daemon, "");
        format!("{scrape}    authorization: {{credentials_file: {token}}}\n")
    }

    fn worker(&self, names: (&str, &str), daemon: &Daemon) -> String {
        let identity = self.login.join("identity.pem");
        let (identity, id, cluster) = (identity.display(), &daemon.id, &self.cluster);
        let name = format!("{id}.worker.{cluster}.ringtune.internal");
        self.scrape(
            names,
            daemon,
            &format!(", cert_file: {identity}, key_file: {identity}, server_name: {name}"),
        )
    }
}

/// All daemons, and the coordinator and the first worker by three more who look.
fn configuration(observer: &Observer, cluster: &Cluster<'_>) -> String {
    let rules = ringtune_tests::places::repository().join("deploy/prometheus/ringtune.rules.yml");
    let head = "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}";
    let mut text = format!("{head}\nrule_files: ['{}']\nscrape_configs:\n", rules.display());
    text += &observer.coordinator(("ringtune-coordinator", "ringtune-coordinator"), &cluster.coordinator);
    for (number, worker) in cluster.workers.iter().enumerate() {
        text += &observer.worker((&format!("worker-{number}"), "ringtune-workers"), worker);
    }
    for more in ["b", "c", "d"] {
        text += &observer.coordinator((&format!("coordinator-{more}"), more), &cluster.coordinator);
        text += &observer.worker((&format!("worker-{more}"), more), &cluster.workers[0]);
    }
    text
}

#[tokio::test]
async fn every_panel_of_the_dashboard_shows_something_of_a_running_job() -> Result<()> {
    if !tools::are_here()? {
        return Ok(());
    }
    let sandbox = Sandbox::new()?;
    let cluster = start(&sandbox).await?;
    let observer = Observer::of(&cluster, &sandbox).await?;
    let written = sandbox.path("prometheus.yml");
    fs::write(&written, configuration(&observer, &cluster))?;
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

    // 2. Nobody is held up by four who look ten times a second.
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

    // 4. Lines about the job say which it is, and of which rank and epoch.
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
