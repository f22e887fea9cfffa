//! Steps of a job that are computed again.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1;
use ringtune_tests::{Cluster, Finished, Job, Launch, Sandbox, daemon::FAKE_WORKER};

/// Two microbatches in each of twelve steps, a checkpoint after every fourth; the state has the best rows so far, and the
/// learning rate depends on the step.
fn job() -> Result<Job> {
    Ok(Job::toy()?
        .shared_by(2)
        .set("train.train_batch_size", 1)
        .set("train.max_train_steps", 12)
        .set("train.lr_scheduler", "cosine")
        .set("train.checkpointing_steps", 4)
        .set("train.save_steps", 5)
        .set("train.validation_loss_steps", 3)
        .set("train.select_best", true))
}

async fn succeeded(cluster: &Cluster<'_>, sandbox: &Sandbox, job: &Job) -> Result<String> {
    let job_id = cluster.submit(&sandbox.write_job("job.toml", job)?).await?;
    cluster.wait_for_success(&job_id).await?;
    Ok(job_id)
}

/// The verification, as the last line of JSON says it.
fn verdict(finished: &Finished) -> Result<serde_json::Value> {
    let last = finished.json_lines()?.pop().context("a line")?;
    ensure!(last["type"] == "job" && last["verification"].is_object(), "{last}");
    Ok(last)
}

#[tokio::test]
async fn a_job_is_verified_as_a_whole_and_from_a_checkpoint_on() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start_fake(&sandbox, 2).await?;
    let job = succeeded(&cluster, &sandbox, &job()?).await?;

    // 1. All of it. The last line is the verdict, and the only one on stdout.
    let all = cluster.finish(&["verify", &job]).await?.expect_code(0)?;
    ensure!(all.stdout == format!("same: steps 1 to 12 of {job}\n"), "{}", all.stdout);

    // 2. A few steps in the middle, from the checkpoint before them.
    let some =
        cluster.finish(&["verify", &job, "--steps", "6-7", "--output", "json"]).await?.expect_code(0)?;
    let found = verdict(&some)?;
    ensure!(found["state"] == "SUCCEEDED" && found["verification"]["compared"] == 7, "{found}");
    let verification = found["job_id"].as_str().context("an id")?;
    let numbers: Vec<i64> = cluster.steps(verification).await?.iter().map(|step| step.step).collect();
    ensure!(numbers == [5, 6, 7], "{numbers:?}");

    // 3. It is listed by what it verifies, and left no file.
    let listed = cluster.finish(&["list"]).await?.expect_code(0)?.stdout;
    let shown = &job[job.len() - 8..];
    ensure!(listed.contains(&format!("verify {shown} steps 6-7")), "{listed}");
    let shown = cluster.finish(&["status", verification]).await?.expect_code(0)?.stdout;
    ensure!(shown.contains(&format!("steps 6-7 of {job}")) && shown.contains("same up to step 7"), "{shown}");
    let by_name = cluster.finish(&["status", "toy"]).await?.expect_code(0)?.stdout;
    ensure!(by_name.contains(&job), "the name of a job means its verification: {by_name}");
    let files = cluster.files(verification).await?;
    ensure!(files.is_empty(), "{files:?}");

    // 4. The model card names the state after the last step.
    let card = fs::read_to_string(cluster.fetch(&job, "out").await?.join("README.md"))?;
    let last = cluster.steps(&job).await?.pop().context("a step")?;
    ensure!(card.contains(&format!("State after the last step: `sha256:{}`", last.state_sha256)), "{card}");

    // 5. What is no range of steps, or none of this job, is refused.
    for steps in ["7-6", "0-3", "seven", "12-13"] {
        let refused = cluster.finish(&["verify", &job, "--steps", steps]).await?.expect_code(2)?;
        refused.expect_said(&["allowed: "])?;
    }
    Ok(())
}

#[tokio::test]
async fn a_checkpoint_that_is_cut_short_gives_way_to_an_older_one() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start_fake(&sandbox, 1).await?;
    let job = succeeded(&cluster, &sandbox, &job()?).await?;
    let files = cluster.files(&job).await?;
    let newest = files.iter().find(|file| file.name == "checkpoint-8.safetensors").context("a checkpoint")?;
    let hash = &newest.sha256;
    let content = sandbox.path("coordinator/contents/sha256").join(&hash[..2]).join(hash);
    let bytes = fs::read(&content)?;
    fs::write(&content, &bytes[..bytes.len() / 2])?;

    let same =
        cluster.finish(&["verify", &job, "--steps", "9-10", "--output", "json"]).await?.expect_code(0)?;
    let found = verdict(&same)?;
    let steps = cluster.steps(found["job_id"].as_str().context("an id")?).await?;
    let numbers: Vec<i64> = steps.iter().map(|step| step.step).collect();
    ensure!(numbers == [5, 6, 7, 8, 9, 10], "{numbers:?}");
    Ok(())
}

#[tokio::test]
async fn a_worker_that_computes_otherwise_is_found_out() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut cluster = Cluster::start_fake(&sandbox, 1).await?;
    let job = succeeded(&cluster, &sandbox, &job()?).await?;
    let honest = cluster.list_workers().await?.pop().context("a worker")?.worker_id;
    cluster.finish(&["drain", &honest]).await?.expect_code(0)?;
    // Of two gradients a step, the seventh: the step is left out.
    let other = Launch::worker("other", FAKE_WORKER, &cluster.coordinator.grpc);
    cluster.add_worker(other.flags(["--not-finite-on-gradient=7"])).await?;
    cluster.wait_for_idle(2).await?;

    let found = cluster.finish(&["verify", &job]).await?.expect_code(1)?;
    let stored = cluster.steps(&job).await?.remove(3).state_sha256;
    let line = format!("differs: step 4 of {job}: stored sha256:{stored}, computed sha256:");
    ensure!(found.stdout.starts_with(&line) && found.stdout.lines().count() == 1, "{}", found.stdout);
    let listed = v1::ListJobsRequest { page_size: 1, ..Default::default() };
    let newest = cluster.jobs().await?.list_jobs(listed).await?.into_inner().jobs.pop().context("a job")?;
    ensure!(newest.reason_code() == v1::JobReason::Differs, "{newest:?}");
    let difference = newest.verification.and_then(|one| one.difference).context("a difference")?;
    ensure!((difference.step, &difference.stored_sha256) == (4, &stored), "{difference:?}");
    ensure!(difference.computed_sha256 != stored && found.stdout.contains(&difference.computed_sha256));

    // It has computed its odd gradient by now, and whoever is left is honest.
    let again = cluster.finish(&["verify", &job, "--steps", "4"]).await?.expect_code(0)?;
    ensure!(again.stdout == format!("same: steps 4 to 4 of {job}\n"), "{}", again.stdout);
    Ok(())
}

#[tokio::test]
async fn what_libtorch_computed_on_two_workers_it_computes_again_on_one() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start(&sandbox, 2).await?;
    let job = job()?
        .set("train.max_train_steps", 6)
        .set("train.checkpointing_steps", 2)
        .set("train.mixed_precision", "bf16")
        .set("train.validation_prompt", "a <green-star>")
        .set("train.validation_steps", 3);
    let job = succeeded(&cluster, &sandbox, &job).await?;
    for (steps, verified) in [(None, "1 to 6"), (Some("5-6"), "5 to 6")] {
        let mut arguments = vec!["verify", &job];
        arguments.extend(steps.into_iter().flat_map(|steps| ["--steps", steps]));
        let same = cluster.finish(&arguments).await?.expect_code(0)?;
        ensure!(same.stdout == format!("same: steps {verified} of {job}\n"), "{}", same.stdout);
    }
    Ok(())
}
