//! Log lines of real daemons, as a program reads them: whoever looks for a job, one of its ranks or one of its rings finds
//! all that was said about it.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Cluster, Job, Launch, Sandbox};
use serde_json::Value;

/// What workers do on behalf of ranks alone.
const OF_RANKS: [&str; 10] = [
    "ringtune_worker::journal",
    "ringtune_worker::rank",
    "ringtune_worker::ring",
    "ringtune_worker::training",
    "ringtune_worker::kinds",
    "ringtune_worker::contents",
    "ringtune_worker::inputs",
    "ringtune_worker::base_model",
    "ringtune_worker::latents",
    "ringtune_shared::ring",
];

async fn cluster(sandbox: &Sandbox) -> Result<Cluster<'_>> {
    let worker = |launch: Launch| {
        let launch = launch.logging_json().flags(["--gradient-takes", "20"]);
        launch.variable("RINGTUNE__LOG__FILTER", "info,ringtune_worker=debug")
    };
    Cluster::start_fake_with(sandbox, Launch::coordinator().logging_json(), 2, worker).await
}

fn job(steps: i64) -> Result<Job> {
    Ok(Job::toy()?.set("train.max_train_steps", steps).set("train.checkpointing_steps", 5).shared_by(2))
}

/// Parses a log, whose lines are JSON objects without duplicate keys.
fn lines(sandbox: &Sandbox, label: &str) -> Result<Vec<Value>> {
    let log = fs::read_to_string(sandbox.path(&format!("{label}.log")))?;
    let read = |line: &str| -> Result<Value> {
        for field in ["job", "rank", "epoch"] {
            ensure!(line.matches(&format!("\"{field}\":")).count() <= 1, "{field} twice: {line}");
        }
        serde_json::from_str(line).with_context(|| line.to_owned())
    };
    log.lines().map(read).collect()
}

fn word<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or_default()
}

/// The lines of a worker that are about ranks.
fn of_ranks(sandbox: &Sandbox, label: &str) -> Result<Vec<Value>> {
    let is_of_rank = |line: &Value| OF_RANKS.iter().any(|module| word(line, "target").starts_with(module));
    Ok(lines(sandbox, label)?.into_iter().filter(is_of_rank).collect())
}

/// Job, rank and epoch of a line.
fn about(line: &Value) -> Result<(&str, u64, u64)> {
    let all = (line["job"].as_str(), line["rank"].as_u64(), line["epoch"].as_u64());
    let (Some(job), Some(rank), Some(epoch)) = all else { anyhow::bail!("whose is it? {line}") };
    Ok((job, rank, epoch))
}

#[tokio::test]
async fn each_line_of_a_rank_says_whose_it_is() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = cluster(&sandbox).await?;
    let id = cluster.submit(&sandbox.write_job("job.toml", &job(10)?)?).await?;
    cluster.wait_for_success(&id).await?;
    let mut ranks = BTreeSet::new();
    for label in ["worker-1", "worker-2"] {
        let lines = of_ranks(&sandbox, label)?;
        let introduced = lines.iter().find_map(|line| {
            let place = word(line, "message").strip_prefix("rank ")?;
            place.split(' ').next()?.parse::<u64>().ok()
        });
        let rank = introduced.context("it does not say which rank it is")?;
        ranks.insert(rank);
        for line in &lines {
            ensure!(about(line)? == (&id, rank, 1), "of rank {rank}: {line}");
        }
    }
    ensure!(ranks == BTreeSet::from([0, 1]), "{ranks:?}");
    // The coordinator's own lines.
    let coordinator = lines(&sandbox, "coordinator")?;
    let states: Vec<&Value> = coordinator.iter().filter(|line| word(line, "message") == "job").collect();
    ensure!(states.len() >= 4 && states.iter().all(|line| word(line, "job") == id), "{states:?}");
    let running = states.iter().find(|line| word(line, "state") == "running").context("it never ran")?;
    ensure!(running["epoch"] == 1, "{running}");
    Ok(())
}

#[tokio::test]
async fn so_do_the_threads_and_tasks_that_a_rank_starts() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = cluster(&sandbox).await?;
    let file = sandbox.write_job("job.toml", &job(5)?)?;
    let first = cluster.submit(&file).await?;
    cluster.wait_for_end(&first).await?;
    cluster.wait_for_idle(2).await?;
    // What both workers keep of its pictures is damaged: threads that read files find it.
    for folder in ["worker-1/cache", "worker-1/latents", "worker-2/cache", "worker-2/latents"] {
        for file in fs::read_dir(sandbox.path(folder))? {
            let file = file?.path();
            if file.is_file() {
                fs::write(file, "damaged")?;
            }
        }
    }
    let second = cluster.submit(&file).await?;
    cluster.wait_for_success(&second).await?;
    let mut modules = BTreeSet::new();
    for label in ["worker-1", "worker-2"] {
        let lines = of_ranks(&sandbox, label)?;
        for line in &lines {
            let (job, ..) = about(line)?;
            if word(line, "message").starts_with("a damaged file") {
                ensure!(job == second, "{line}");
                modules.insert(word(line, "target").to_owned());
            }
        }
    }
    let expected = ["ringtune_worker::contents::cache", "ringtune_worker::latents::cache"];
    ensure!(modules.iter().eq(expected), "{modules:?}");
    Ok(())
}

#[tokio::test]
async fn a_rank_that_goes_on_in_another_ring_says_so() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut cluster = cluster(&sandbox).await?;
    let id = cluster.submit(&sandbox.write_job("job.toml", &job(1_000_000)?)?).await?;
    cluster.wait_for_step(&id, 3).await?;
    // Rank 0 dies; the other one has another rank from now on.
    let workers = cluster.list_workers().await?;
    let first = workers.iter().find(|worker| worker.rank == Some(0)).context("rank 0")?;
    let of = |cluster: &Cluster<'_>, is_first: bool| {
        let found = cluster.workers.iter().find(|worker| (worker.id == first.worker_id) == is_first);
        found.map(|worker| worker.label.clone()).context("a worker")
    };
    let (lost, left) = (of(&cluster, true)?, of(&cluster, false)?);
    cluster.daemon(&lost)?.end().await?;
    let died_at = cluster.job(&id).await?.step;
    cluster.wait_for_step(&id, died_at + 3).await?;
    let all = of_ranks(&sandbox, &left)?;
    let moved = all.iter().position(|line| word(line, "message").starts_with("epoch 2, rank 0 of 1"));
    let (before, after) = all.split_at(moved.context("it is in no other ring")?);
    for (lines, place) in [(before, (id.as_str(), 1, 1)), (after, (id.as_str(), 0, 2))] {
        ensure!(!lines.is_empty());
        for line in lines {
            ensure!(about(line)? == place, "{place:?}: {line}");
        }
    }
    Ok(())
}
