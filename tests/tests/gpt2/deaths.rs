//! Whatever dies, the job ends with the bytes of a run in which nothing did.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::JobState;
use ringtune_tests::{
    Cluster, Job, Sandbox, chaos,
    files::{copy_alone, differences, expect_same},
    wait::{SOON, until},
};
use rustix::process::Signal;

use crate::{Ground, RESULTS, run};

/// Of a job.
const STEPS: i64 = 45;

/// Large next to what a step computes, so that a kill at any moment finds a worker in its forward or backward pass, in the
/// exchange of its gradients, or in the optimizer, each about as often.
fn job(ground: &Ground) -> Result<Job> {
    Ok(ground
        .job()?
        .set("gpt2.n_layer", 3)
        .set("gpt2.n_head", 4)
        .set("gpt2.n_embd", 160)
        .set("gpt2.learning_rate", 1e-3)
        .set("gpt2.max_iters", STEPS)
        .set("gpt2.eval_interval", 7)
        .set("gpt2.checkpointing_steps", 15)
        .set("gpt2.compare_interval", 1)
        .set("cluster.world_size", 3))
}

/// A number below `bound` that follows from a seed.
fn below(seed: &mut u64, bound: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % bound
}

fn expect_same_as(straight: &Path, folder: &Path) -> Result<()> {
    expect_same(straight, folder, &[&RESULTS[..], &[&format!("checkpoint-{STEPS}.safetensors")]].concat())
}

/// Of each line of metrics.csv what does not depend on the clock: step, loss, rate and validation loss.
fn measured(folder: &Path) -> Result<Vec<[String; 4]>> {
    let text = fs::read_to_string(folder.join("metrics.csv"))?;
    let line = |line: &str| -> Option<[String; 4]> {
        let columns: Vec<&str> = line.split(',').collect();
        let column = |number: usize| columns.get(number).map(|text| (*text).to_owned());
        Some([column(0)?, column(1)?, column(2)?, column(7)?])
    };
    text.lines().map(|text| line(text).with_context(|| text.to_owned())).collect()
}

/// Kills three workers, one after the other and each soon after a step, and starts them again.
async fn kill_each(job: Job, ground: &Ground, sandbox: &Sandbox) -> Result<()> {
    let file = sandbox.write_job("job.toml", &job)?;
    let straight = run(sandbox, "job.toml", 1, "straight").await?;
    let mut seed = chaos::seed();
    chaos::say(&format!("seed {seed}, tokens {}", ground.tokens.display()));
    let mut cluster = Cluster::start(sandbox, 3).await?;
    let id = cluster.submit(&file).await?;
    // Rank 0, the last one, and one in between.
    for (step, worker) in [(4, 1), (15, 3), (26, 2)] {
        cluster.wait_for_step(&id, step).await?;
        tokio::time::sleep(Duration::from_millis(below(&mut seed, 150))).await;
        let label = format!("worker-{worker}");
        cluster.replace_all(&[&label]).await?;
        let whole = || async {
            let job = cluster.job(&id).await?;
            let members = job.ring.as_ref().map_or(0, |ring| ring.members.len());
            Ok((members == 3 || job.state() != JobState::Running).then_some(()))
        };
        until("the worker that came back has a rank", SOON, whole).await?;
    }
    let out = cluster.result(&id, "out").await?;
    expect_same_as(&straight, &out)?;
    let (found, wanted) = (measured(&out)?, measured(&straight)?);
    ensure!(found == wanted, "metrics.csv has {found:?} instead of {wanted:?}");
    Ok(())
}

#[tokio::test]
async fn workers_die_one_after_the_other_and_come_back() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    kill_each(job(&ground)?, &ground, &sandbox).await
}

/// Taking the loss takes most of the time: what it says belongs to no state yet when a ring breaks. The ranks have the optimizer together.
#[tokio::test]
async fn workers_die_while_the_validation_loss_is_taken() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    let job = job(&ground)?
        .set("gpt2.n_embd", 32)
        .set("gpt2.eval_interval", 2)
        .set("gpt2.eval_iters", 150)
        .set("gpt2.shard_optimizer", true);
    kill_each(job, &ground, &sandbox).await
}

/// What is dropped does not depend on who computes it: the bytes are those of one worker for two and three, when one of them
/// dies in between, and after a resume.
#[tokio::test]
async fn what_is_dropped_is_the_same_whoever_dies() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = job(&Ground::lay(&sandbox).await?)?
        .set("gpt2.dropout", 0.2)
        .set("gpt2.mixed_precision", "bf16")
        .set("gpt2.shard_optimizer", true)
        .set("gpt2.max_iters", 30)
        .set("gpt2.checkpointing_steps", 10);
    let file = sandbox.write_job("job.toml", &job)?;
    let mut cluster = Cluster::start(&sandbox, 1).await?;
    let straight = cluster.complete(&file, "straight").await?;
    let names = [&RESULTS[..], &["checkpoint-30.safetensors"]].concat();
    // It can fail: without dropout it is another model.
    let without = sandbox.write_job("without.toml", &job.clone().set("gpt2.dropout", 0.0))?;
    let without = cluster.complete(&without, "without").await?;
    cluster.grow(2).await?;
    expect_same(&straight, &cluster.complete(&file, "two").await?, &names)?;
    ensure!(!differences(&straight, &without, &RESULTS)?.is_empty(), "dropout changes nothing");
    // From a checkpoint on.
    sandbox.write_job("resume.toml", &job.set("gpt2.resume_from_checkpoint", "latest"))?;
    let folder = sandbox.path("resumed");
    copy_alone(&straight, "checkpoint-20.safetensors", &folder)?;
    run(&sandbox, "resume.toml", 2, "resumed").await?;
    expect_same(&straight, &folder, &names)?;
    // Three workers, of which one dies.
    cluster.grow(3).await?;
    let id = cluster.submit(&file).await?;
    cluster.wait_for_step(&id, 4).await?;
    cluster.replace_all(&["worker-2"]).await?;
    expect_same(&straight, &cluster.result(&id, "out").await?, &names)
}

/// A job that loses all its workers goes on from what rank 0 kept.
#[tokio::test]
async fn all_workers_die_and_others_go_on() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = job(&Ground::lay(&sandbox).await?)?;
    let file = sandbox.write_job("job.toml", &job)?;
    let straight = run(&sandbox, "job.toml", 2, "straight").await?;
    let mut cluster = Cluster::start(&sandbox, 2).await?;
    let id = cluster.submit(&file).await?;
    cluster.wait_for_artifact(&id, "checkpoint-15.safetensors").await?;
    cluster.replace_all(&["worker-1", "worker-2"]).await?;
    expect_same_as(&straight, &cluster.result(&id, "out").await?)
}

/// Neighbours that have an optimizer together with a third rank take parts of it with them: the job goes on from what was kept.
#[tokio::test]
async fn neighbours_die_together_and_the_job_goes_on_from_a_checkpoint() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = job(&Ground::lay(&sandbox).await?)?
        .set("gpt2.n_embd", 64)
        .set("gpt2.eval_iters", 2)
        .set("gpt2.checkpointing_steps", 9)
        .set("gpt2.shard_optimizer", true);
    let file = sandbox.write_job("job.toml", &job)?;
    let straight = run(&sandbox, "job.toml", 1, "straight").await?;
    let mut cluster = Cluster::start(&sandbox, 3).await?;
    let id = cluster.submit(&file).await?;
    cluster.wait_for_artifact(&id, "checkpoint-9.safetensors").await?;
    for label in ["worker-1", "worker-3"] {
        cluster.signal(label, Signal::KILL)?;
    }
    for label in ["worker-1", "worker-3"] {
        cluster.daemon(label)?.ended().await?;
        cluster.start_again(label).await?;
    }
    expect_same_as(&straight, &cluster.result(&id, "out").await?)
}

/// What a cancelled job keeps is the state after a whole step, wherever it was: in a pass, an update or a validation.
#[tokio::test]
async fn a_cancelled_job_goes_on_to_the_same_bytes() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    let job = job(&ground)?
        .set("gpt2.eval_interval", 3)
        .set("gpt2.eval_iters", 10)
        .set("gpt2.shard_optimizer", true);
    let file = sandbox.write_job("job.toml", &job)?;
    sandbox.write_job("resume.toml", &job.set("gpt2.resume_from_checkpoint", "latest"))?;
    let straight = run(&sandbox, "job.toml", 1, "straight").await?;
    let mut seed = chaos::seed();
    chaos::say(&format!("seed {seed}"));
    let cluster = Cluster::start(&sandbox, 3).await?;
    let id = cluster.submit(&file).await?;
    cluster.wait_for_step(&id, 5).await?;
    tokio::time::sleep(Duration::from_millis(below(&mut seed, 400))).await;
    cluster.finish(&["cancel", &id]).await?.expect_code(0)?;
    cluster.wait_for_state(&id, JobState::Cancelled).await?;
    let kept = cluster.fetch(&id, "cancelled").await?;
    ensure!(kept.join("model.safetensors").is_file(), "no model was kept");
    run(&sandbox, "resume.toml", 2, "cancelled").await?;
    expect_same_as(&straight, &kept)
}
