//! A job that was stopped goes on to the same bytes.

use std::{fs, path::Path, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Job, Sandbox,
    files::{copy_alone, expect_same, names_in},
    process::{finish_child, signal_process},
    wait::{SOON, until},
};
use rustix::process::Signal;

/// The files that depend on the job alone.
const RESULTS: [&str; 3] =
    ["learned_embeds.safetensors", "learned_embeds-emb_params.safetensors", "README.md"];

/// Nine steps on one or two workers, a checkpoint after every third; the learning rate depends on the step.
fn job(precision: &str) -> Result<Job> {
    Ok(Job::toy()?
        .shared_by(2)
        .set("train.train_batch_size", 1)
        .set("train.num_vectors", 2)
        .set("train.max_train_steps", 9)
        .set("train.lr_scheduler", "cosine")
        .set("train.checkpointing_steps", 3)
        .set("train.mixed_precision", precision))
}

fn checkpoint(step: u32) -> String {
    format!("checkpoint-{step}.safetensors")
}

/// The names in a folder that begin with "checkpoint", sorted.
fn checkpoints_in(folder: &Path) -> Result<Vec<String>> {
    let names = names_in(folder)?.into_iter();
    Ok(names.filter(|name| name.starts_with("checkpoint")).collect())
}

/// Runs the job straight through and again from its checkpoints, on that many workers each.
async fn resumes_to_the_same_bytes(precision: &str, from: &[(u32, &str)]) -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.write_job("job.toml", &job(precision)?)?;
    sandbox.write_job("resume.toml", &job(precision)?.set("train.resume_from_checkpoint", "latest"))?;
    let straight = sandbox.path("straight");
    // Without a checkpoint "latest" starts at step 1.
    let run = sandbox.finish(&["run", "resume.toml", "-o", "straight", "--workers", "2"]).await?;
    run.expect_code(0)?.expect_said(&["no checkpoint in straight: starting a new run"])?;
    ensure!(checkpoints_in(&straight)? == [3, 6, 9].map(checkpoint), "{:?}", checkpoints_in(&straight)?);
    for (step, workers) in from {
        let name = format!("from-{step}");
        let folder = sandbox.path(&name);
        copy_alone(&straight, &checkpoint(*step), &folder)?;
        fs::write(folder.join("metrics.csv"), "the steps before")?;
        let arguments = ["run", "resume.toml", "-o", &name, "--workers", workers, "--output", "json"];
        let run = sandbox.finish(&arguments).await?.expect_code(0)?;
        expect_same(&straight, &folder, &RESULTS)?;
        let last = checkpoint(9);
        expect_same(&straight, &folder, &[&last])?;
        // It begins where the checkpoint ends.
        let lines = run.json_lines()?;
        ensure!(lines[0]["step"] == *step, "{}", lines[0]);
        let steps: Vec<u64> = lines
            .iter()
            .filter(|line| line["event"] == "step")
            .filter_map(|line| line["step"].as_u64())
            .collect();
        ensure!(steps == (u64::from(step + 1)..=9).collect::<Vec<_>>(), "{steps:?}");
        let metrics = fs::read_to_string(folder.join("metrics.csv"))?;
        ensure!(metrics.lines().count() == steps.len() + 1, "{metrics}");
        let before = folder.join(format!("metrics-before-step-{}.csv", step + 1));
        ensure!(fs::read_to_string(before)? == "the steps before");
    }
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn every_checkpoint_goes_on_to_the_same_bytes_in_fp32() -> Result<()> {
    resumes_to_the_same_bytes("no", &[(3, "2"), (6, "1")]).await
}

#[tokio::test]
async fn a_checkpoint_goes_on_to_the_same_bytes_in_bf16() -> Result<()> {
    resumes_to_the_same_bytes("bf16", &[(6, "1")]).await
}

#[tokio::test]
async fn a_job_whose_run_or_worker_is_killed_goes_on_to_the_same_bytes() -> Result<()> {
    const STEPS: i64 = 40;
    let sandbox = Sandbox::new()?;
    let job = job("no")?.set("train.max_train_steps", STEPS).set("train.checkpointing_steps", 2);
    sandbox.write_job("job.toml", &job)?;
    sandbox.write_job("resume.toml", &job.set("train.resume_from_checkpoint", "latest"))?;
    sandbox.finish(&["run", "job.toml", "-o", "straight"]).await?.expect_code(0)?;
    for killed in ["run", "worker"] {
        let folder = sandbox.path(killed);
        let mut run = sandbox
            .ringtune(&["run", "job.toml", "-o", killed])?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        // Checkpoints are there while it still trains.
        let second = folder.join(checkpoint(4));
        until("a second checkpoint", SOON, || async { Ok(second.exists().then_some(())) }).await?;
        if killed == "run" {
            run.kill().await?;
        } else {
            let is_worker =
                |command: &str| command.split(' ').next().is_some_and(|program| program.ends_with("-worker"));
            let worker = sandbox.processes()?.into_iter().find(|one| is_worker(&one.command));
            signal_process(worker.context("a worker")?.id, Signal::KILL)?;
            // It is started again, and the job goes on meanwhile.
            finish_child(run)
                .await?
                .expect_code(0)?
                .expect_said(&["re-forming the ring", "starting the worker-"])?;
            expect_same(&sandbox.path("straight"), &folder, &RESULTS)?;
            continue;
        }
        sandbox.expect_no_process().await?;
        ensure!(!folder.join(RESULTS[0]).exists(), "the run was over before it was killed");
        let resumed = sandbox.finish(&["run", "resume.toml", "-o", killed]).await?;
        resumed.expect_code(0)?.expect_said(&["resuming after step"])?;
        expect_same(&sandbox.path("straight"), &folder, &RESULTS)?;
    }
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn what_does_not_fit_is_refused_before_anything_starts() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = job("no")?.set("train.max_train_steps", 3).set("train.lr_scheduler", "constant");
    sandbox.write_job("job.toml", &job)?;
    sandbox.finish(&["run", "job.toml", "-o", "out", "--workers", "1"]).await?.expect_code(0)?;
    let resume = |key: &str, value: toml::Value| {
        job.clone().set("train.resume_from_checkpoint", "checkpoint-3").set(key, value)
    };
    let refused: [(&str, toml::Value, &str); 4] = [
        ("train.max_train_steps", 2.into(), "take an earlier one"),
        ("train.seed", 8.into(), "train.seed was 7, now it is 8"),
        ("train.learning_rate", 0.01.into(), "train.learning_rate was 0.02, now it is 0.01"),
        ("train.resume_from_checkpoint", 2.into(), "checkpoint-2.safetensors"),
    ];
    for (key, value, said) in refused {
        sandbox.write_job("other.toml", &resume(key, value))?;
        let run = sandbox.finish(&["run", "other.toml", "-o", "out"]).await?.expect_code(2)?;
        run.expect_said(&["train.resume_from_checkpoint", said])?;
    }
    // After the last step there is nothing to train, but there are results.
    sandbox.write_job("again.toml", &resume("train.save_steps", 1.into()))?;
    let (from, to) = (sandbox.path("out"), sandbox.path("again"));
    copy_alone(&from, "checkpoint-3.safetensors", &to)?;
    let again = sandbox.finish(&["run", "again.toml", "-o", "again", "--workers", "1"]).await?;
    again.expect_code(0)?.expect_said(&["nothing is left to train"])?;
    expect_same(&from, &to, &RESULTS)?;
    // Other pictures: only a worker sees that.
    let pictures = sandbox.path("pictures");
    fs::create_dir(&pictures)?;
    let first = fs::read_dir(ringtune_tests::places::green_star())?.next().context("a picture")??.path();
    fs::copy(&first, pictures.join("other.png"))?;
    let longer = resume("train.max_train_steps", 5.into());
    let other = longer.clone().set("data.images", pictures.to_string_lossy().into_owned());
    sandbox.write_job("other.toml", &other)?;
    let run = sandbox.finish(&["run", "other.toml", "-o", "out", "--workers", "1"]).await?.expect_code(1)?;
    run.expect_said(&["data.images has another content"])?;
    // More steps at a constant rate: that is what a run without a stop gives, too.
    sandbox.write_job("longer.toml", &longer)?;
    sandbox.finish(&["run", "longer.toml", "-o", "out", "--workers", "1"]).await?.expect_code(0)?;
    sandbox.write_job("straight.toml", &job.clone().set("train.max_train_steps", 5))?;
    sandbox.finish(&["run", "straight.toml", "-o", "straight"]).await?.expect_code(0)?;
    expect_same(&sandbox.path("straight"), &sandbox.path("out"), &RESULTS)?;
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn only_the_newest_are_kept_and_an_earlier_job_can_be_gone_on_with() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start(&sandbox, 1).await?;
    let job = job("no")?.set("train.lr_scheduler", "constant").set("train.checkpoints_total_limit", 2);
    let first = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    let kept = checkpoints_in(&cluster.result(&first, "first").await?)?;
    ensure!(kept == [6, 9].map(checkpoint), "{kept:?}");

    let longer = sandbox.write_job("longer.toml", &job.set("train.max_train_steps", 11))?;
    let arguments = ["submit", "--resume-from", &first, &longer.to_string_lossy()];
    let second = cluster.finish(&arguments).await?.expect_code(0)?.stdout.trim().to_owned();
    cluster.wait_for_success(&second).await?;
    let steps = cluster.steps(&second).await?;
    ensure!(steps.iter().map(|step| step.step).eq([10, 11]), "{steps:?}");
    Ok(())
}
