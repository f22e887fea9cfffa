//! Jobs and workers on a real cluster of Slurm, submitted by a user who is not root.

mod cluster;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use cluster::Site;
use ringtune_tests::{
    Job,
    job::text,
    places,
    process::{Finished, finish, finish_child},
    tools,
    wait::{SOON, until},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

const LEARNED: &str = "learned_embeds.safetensors";
const STEPS: i64 = 80;

/// A job of two ranks, as any user has one.
fn write_job(site: &Site) -> Result<PathBuf> {
    let job = Job::toy()?
        .set("model.base", text(&site.home("model")))
        .set("data.images", text(&site.home("pictures")))
        .set("train.max_train_steps", STEPS)
        .shared_by(2)
        .without("cluster.min_world_size");
    let path = site.home("job.toml");
    job.write(&path)?;
    Ok(path)
}

/// What the job learns where nothing happens to it.
async fn learned_here(site: &Site) -> Result<Vec<u8>> {
    let line = ["run", "job.toml", "--workers", "2", "-o", "here", "--set", "cluster.min_world_size=1"];
    site.ringtune(&line).await?.expect_code(0)?;
    Ok(fs::read(site.home("here").join(LEARNED))?)
}

/// A job that was submitted and has come to step 20; with it Slurm's id.
async fn begun(site: &Site) -> Result<(Child, String)> {
    let mut run = site.command("ringtune", &["slurm", "run", "job.toml", "-o", "out"]);
    let run = run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let log = site.home("out/slurm.log");
    let begun = || async {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let step = |line: &str| line.strip_prefix("step ")?.split('/').next()?.parse::<i64>().ok();
        Ok(text.lines().filter_map(step).any(|step| step >= 20).then_some(()))
    };
    until("it trains", SOON, begun).await.with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
    let id = site.slurm("squeue", &["-h", "-o", "%A"]).await?.trim().to_owned();
    Ok((run, id))
}

/// It has succeeded, each step is there once, and nothing of its state is left.
async fn expect_same(site: &Site, run: Child, expected: &[u8]) -> Result<Finished> {
    let done = finish_child(run).await?.expect_code(0)?;
    ensure!(fs::read(site.home("out").join(LEARNED))? == expected, "other bytes:\n{}", done.stderr);
    let metrics = fs::read_to_string(site.home("out/metrics.csv"))?;
    let steps = metrics.lines().skip(1).map(|line| line.split(',').next().unwrap_or_default().to_owned());
    ensure!(steps.eq((1..=STEPS).map(|step| step.to_string())), "{metrics}");
    ensure!(!site.home("out/slurm").exists(), "its state is still there");
    site.expect_no_job().await?;
    Ok(done)
}

#[tokio::test]
async fn a_job_whose_nodes_are_taken_away_goes_on_when_it_is_requeued() -> Result<()> {
    let Some(site) = Site::start().await? else { return Ok(()) };
    write_job(&site)?;
    let expected = learned_here(&site).await?;
    let (run, id) = begun(&site).await?;
    site.slurm("scancel", &["--batch", "--signal=USR1", &id]).await?;
    let done = expect_same(&site, run, &expected).await?;
    done.expect_said(&["SIGUSR1: the job leaves these nodes", "resumed after step", " files ("])?;
    Ok(())
}

#[tokio::test]
async fn a_node_that_dies_costs_no_step() -> Result<()> {
    let Some(mut site) = Site::start().await? else { return Ok(()) };
    write_job(&site)?;
    let expected = learned_here(&site).await?;
    let (run, id) = begun(&site).await?;
    let shown = site.slurm("scontrol", &["show", "job", "--oneliner", &id]).await?;
    let first = shown.split("BatchHost=").nth(1).and_then(|rest| rest.split(' ').next()).context("a host")?;
    let nodes = site.slurm("squeue", &["-h", "-o", "%N", "-j", &id]).await?;
    let other = cluster::NODES.into_iter().find(|node| *node != first && nodes.contains(&node[1..]));
    site.kill_node(other.context("another node")?).await?;
    expect_same(&site, run, &expected).await?.expect_said(&["re-formed: epoch"])?;
    Ok(())
}

/// The coordinator is this user's, and listens on the network.
async fn coordinator(site: &Site) -> Result<(Child, String)> {
    let line =
        ["--state-dir", "coordinator", "--listen", "0.0.0.0:0", "--http-listen", "127.0.0.1:0", "--announce"];
    let mut command = site.command("ringtune-coordinator", &line);
    let mut daemon = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(daemon.stdout.as_mut().context("stdout")?).lines();
    let line = tokio::time::timeout(SOON, lines.next_line()).await??.context("it ended")?;
    let said: serde_json::Value = serde_json::from_str(&line)?;
    let port = said["grpc"].as_str().and_then(|address| address.rsplit(':').next()).context("a port")?;
    Ok((daemon, format!("https://localhost:{port}")))
}

#[tokio::test]
async fn an_array_of_workers_comes_to_a_cluster_and_leaves_when_there_is_nothing_to_do() -> Result<()> {
    let Some(site) = Site::start().await? else { return Ok(()) };
    write_job(&site)?;
    let (_daemon, url) = coordinator(&site).await?;
    let ask = ["--coordinator", &url, "--credentials", "coordinator/admin"];
    // 1. A token that lets too few in.
    let token = site.ringtune(&[&["token", "create", "--role", "worker"][..], &ask].concat()).await?;
    fs::write(site.home("token"), token.expect_code(0)?.stdout)?;
    // Whoever lends the workers says what jobs may read.
    fs::write(site.home("worker.toml"), format!("[access]\nmodel_roots = [{:?}]\n", site.home("")))?;
    let workers =
        ["slurm", "workers", "--count", "2", "--idle", "5", "--config", "worker.toml", "-o", "shared"];
    let few = site.ringtune(&[&workers[..], &ask, &["--join-file", "token"]].concat()).await?;
    few.expect_code(2)?.expect_said(&["lets 1 in, and --count is 2"])?;
    // 2. The cluster grows, works, and shrinks.
    let submitted = site.ringtune(&[&workers[..], &ask].concat()).await?.expect_code(0)?;
    ensure!(submitted.stdout.trim().parse::<u64>().is_ok(), "{}", submitted.stdout);
    let done = site.ringtune(&[&["submit", "job.toml", "--watch"][..], &ask].concat()).await?;
    done.expect_code(0)?.expect_said(&["training on 2 rank(s)", "succeeded: 80 steps done"])?;
    site.expect_no_job().await?;
    let listed =
        site.ringtune(&[&["workers", "--output", "json"][..], &ask].concat()).await?.expect_code(0)?;
    ensure!(!listed.stdout.contains("IDLE") && !listed.stdout.contains("BUSY"), "{}", listed.stdout);
    Ok(())
}

#[tokio::test]
async fn what_slurm_would_not_run_is_refused_before_it_is_submitted() -> Result<()> {
    let Some(site) = Site::start().await? else { return Ok(()) };
    let job = write_job(&site)?;
    let run = async |more: &[&str]| {
        site.ringtune(&[&["slurm", "run", "job.toml", "-o", "out"][..], more].concat()).await
    };
    for (more, says) in [
        (&["--", "--partition", "nowhere"][..], "invalid partition specified: nowhere"),
        (&["--nodes", "40"], "Slurm does not take this: "),
        (
            &["--nodes", "1", "--set", "cluster.min_world_size=2"],
            "fewer than the job's cluster.min_world_size = 2",
        ),
        (&["--set", "train.learning_rate=-1"], "train.learning_rate"),
    ] {
        run(more).await?.expect_code(2)?.expect_said(&[says])?;
    }
    let shm = site.ringtune(&["slurm", "run", "job.toml", "-o", "/dev/shm/ringtune-test"]).await?;
    shm.expect_code(2)?.expect_said(&["no other node sees it"])?;
    ensure!(!Path::new("/dev/shm/ringtune-test").exists(), "a refused folder was made");
    let mut without = site.command("ringtune", &["slurm", "run", &text(&job)]);
    let ringtune = site.home("../bin/ringtune");
    without.env("PATH", ringtune.parent().context("a folder")?);
    let without = finish(&mut without).await?;
    without.expect_code(2)?.expect_said(&["sbatch is not in PATH"])?;
    ensure!(site.slurm("squeue", &["-h"]).await?.trim().is_empty(), "something was submitted");
    Ok(())
}

/// Needs no Slurm: what it gives is an affinity, and variables.
#[tokio::test]
async fn a_worker_computes_on_what_its_task_may_use() -> Result<()> {
    let Some(taskset) = tools::find("taskset", "util-linux")? else { return Ok(()) };
    let mut doctor = Command::new(taskset);
    doctor
        .args(["--cpu-list", "0"])
        .arg(places::program("ringtune-worker")?)
        .args(["doctor", "--output", "json"]);
    let given = [("SLURM_JOB_ID", "7"), ("SLURM_CPUS_PER_TASK", "1"), ("SLURM_MEM_PER_NODE", "3072")];
    let said = finish(doctor.envs(given)).await?.stdout;
    let report: serde_json::Value = serde_json::from_str(said.trim())?;
    let checks = report["checks"].as_array().context("checks")?;
    let found = |name: &str| {
        let check = checks.iter().find(|check| check["name"] == name);
        check.and_then(|check| check["found"].as_str()).with_context(|| format!("{name}: {said}"))
    };
    ensure!(found("cores")?.starts_with("1 physical") && found("threads")?.starts_with("1 a rank"), "{said}");
    ensure!(found("memory")? == "3.0 GiB", "{said}");
    ensure!(found("runs in")? == "job 7 of Slurm, 1 processors a task, 3.0 GiB a task", "{said}");
    Ok(())
}
