//! Refusals of a coordinator and its workers, with their reasons.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use ringtune_proto::v1::JobState;
use ringtune_tests::{Cluster, Job, Launch, Sandbox, daemon::FAKE_WORKER, job::text, places};

/// Submits the toy job with a value with which it cannot work; it must fail before its first step and name all of `parts`.
async fn fails(
    cluster: &Cluster<'_>,
    sandbox: &Sandbox,
    key: &str,
    value: impl Into<toml::Value>,
    parts: &[&str],
) -> Result<()> {
    let file = sandbox.write_job("bad.toml", &Job::toy()?.set(key, value))?;
    let watched = cluster.finish(&["submit", "--watch", "--output", "json", &text(&file)]).await?;
    let what = format!("the job that should fail for {parts:?}");
    let watched = watched.expect_code(1).context(what.clone())?.expect_said(parts).context(what)?;
    ensure!(!watched.stdout.contains("\"event\":\"step\""), "it made steps: {}", watched.stdout);
    Ok(())
}

/// A copy of the toy checkpoint that may be spoiled.
fn checkpoint_copy(sandbox: &Sandbox, name: &str) -> Result<std::path::PathBuf> {
    let target = sandbox.path(name);
    places::copy_folder(&places::toy_checkpoint(), &target)?;
    Ok(target)
}

#[tokio::test]
async fn jobs_that_cannot_work_fail_before_the_first_step_with_the_reason() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start(&sandbox, 1).await?;

    // 1. Words.
    fails(&cluster, &sandbox, "train.placeholder_token", "circle", &["placeholder_token", "circle"]).await?;
    fails(&cluster, &sandbox, "train.initializer_token", "xqzzyx", &["initializer_token", "xqzzyx"]).await?;

    // 2. Sizes: the toy VAE's factor is 4.
    fails(&cluster, &sandbox, "train.resolution", 62, &["resolution", "62", "4"]).await?;

    // 3. Checkpoints.
    let missing = text(&sandbox.path("no-such-model"));
    fails(&cluster, &sandbox, "model.base", missing, &["no-such-model"]).await?;
    let bare = checkpoint_copy(&sandbox, "without-index")?;
    fs::remove_file(bare.join("model_index.json"))?;
    fails(&cluster, &sandbox, "model.base", text(&bare), &["model_index.json"]).await?;
    let cut = checkpoint_copy(&sandbox, "truncated")?;
    let weights = cut.join("unet/diffusion_pytorch_model.safetensors");
    fs::File::options().write(true).open(&weights)?.set_len(100_000)?;
    fails(&cluster, &sandbox, "model.base", text(&cut), &["diffusion_pytorch_model.safetensors"]).await?;
    let pickle = checkpoint_copy(&sandbox, "pickle")?;
    let unet = pickle.join("unet");
    fs::rename(unet.join("diffusion_pytorch_model.safetensors"), unet.join("diffusion_pytorch_model.bin"))?;
    fails(&cluster, &sandbox, "model.base", text(&pickle), &["unet", "pickle"]).await?;
    let misshapen = checkpoint_copy(&sandbox, "misshapen")?;
    let config = misshapen.join("text_encoder/config.json");
    let narrower =
        fs::read_to_string(&config)?.replace("\"intermediate_size\": 256", "\"intermediate_size\": 128");
    fs::write(&config, narrower)?;
    fails(&cluster, &sandbox, "model.base", text(&misshapen), &["mlp.fc1.weight", "128", "256"]).await?;

    // 4. Pictures.
    let pictures = sandbox.path("pictures");
    places::copy_folder(&places::green_star(), &pictures)?;
    fs::write(pictures.join("broken.png"), "no picture")?;
    fails(&cluster, &sandbox, "data.images", text(&pictures), &["broken.png"]).await?;

    // 5. A trace where the worker's own settings do not allow one.
    fails(&cluster, &sandbox, "debug.trace_dir", "trace", &["trace_dir"]).await?;

    // The worker is none the worse for it. Stray files are skipped, and named.
    fs::rename(pictures.join("broken.png"), pictures.join("notes.txt"))?;
    let good = sandbox.write_job("good.toml", &Job::toy()?.set("data.images", text(&pictures)))?;
    cluster
        .finish(&["submit", "--watch", &text(&good)])
        .await?
        .expect_code(0)?
        .expect_said(&["notes.txt"])?;
    Ok(())
}

#[tokio::test]
async fn a_job_that_one_worker_keeps_from_its_machine_goes_to_another() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator()).await?;
    let worker = |label: &str| Launch::worker(label, FAKE_WORKER, &cluster.coordinator.grpc);
    let (careful, careless) = (worker("careful"), worker("careless"));
    let inside = checkpoint_copy(&sandbox, "models/toy")?;
    let roots = text(&sandbox.path("models"));
    let careful = careful
        .variable("RINGTUNE__ACCESS__MODEL_ROOTS", &roots)
        .variable("RINGTUNE__ACCESS__HUBS", "")
        .variable("RINGTUNE__ACCESS__DATA_ROOTS", "");
    cluster.add_worker(careful).await?;
    cluster.wait_for_idle(1).await?;

    // 1. What lies below its roots it works with as any worker does.
    let job = |base: &Path| Ok::<_, anyhow::Error>(Job::toy()?.set("model.base", text(base)));
    let good = sandbox.write_job("good.toml", &job(&inside)?)?;
    cluster.finish(&["submit", "--watch", &text(&good)]).await?.expect_code(0)?;

    // 2. What does not it refuses and says why. Where there is no other worker the job fails, and the worker, which is well,
    // takes the next one at once.
    let outside = checkpoint_copy(&sandbox, "elsewhere")?;
    let outside_job = sandbox.write_job("outside.toml", &job(&outside)?)?;
    let failed = cluster.wait_for_end(&cluster.submit(&outside_job).await?).await?;
    let reason = &failed.state_reason;
    ensure!(failed.state() == JobState::Failed, "{:?}: {reason}", failed.state());
    for part in ["model.base", &text(&outside), &roots, "access.model_roots"] {
        ensure!(reason.contains(part), "{part}: {reason}");
    }
    cluster.finish(&["submit", "--watch", &text(&good)]).await?.expect_code(0)?;

    // 3. Where there is one, it gets the job.
    cluster.add_worker(careless).await?;
    cluster.wait_for_idle(2).await?;
    for _ in 0..2 {
        cluster.finish(&["submit", "--watch", &text(&outside_job)]).await?.expect_code(0)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_job_for_more_workers_than_there_are_waits_and_says_so() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start_fake(&sandbox, 1).await?;
    let file = sandbox.write_job("job.toml", &Job::toy()?.set("cluster.world_size", 3))?;
    let job_id = cluster.submit(&file).await?;
    let status = cluster.finish(&["status", &job_id, "--output", "json"]).await?.expect_code(0)?;
    let job = &status.json_lines()?[0];
    ensure!(job["job_id"] == job_id.as_str() && job["state"] == "QUEUED", "{job}");
    let reason = job["state_reason"].as_str().unwrap_or_default();
    ensure!(reason.contains('1') && reason.contains('3'), "the reason does not say how many: {reason:?}");
    cluster.finish(&["cancel", &job_id]).await?.expect_code(0)?;
    ensure!(cluster.job(&job_id).await?.state() == JobState::Cancelled);
    cluster.finish(&["watch", &job_id]).await?.expect_code(1)?.expect_said(&["cancelled"])?;
    Ok(())
}

#[tokio::test]
async fn a_second_worker_on_the_same_state_folder_is_refused() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start(&sandbox, 1).await?;
    let state = text(&sandbox.path("worker-1"));
    let launch = Launch::worker("second", "ringtune-worker", &cluster.coordinator.grpc);
    let second = Launch { state: "worker-1".to_owned(), ..launch }.start(&sandbox).await;
    let Err(error) = second else { bail!("a second worker started") };
    ensure!(error.to_string().contains(&state), "the folder is not named: {error}");
    ensure!(cluster.list_workers().await?.len() == 1);
    Ok(())
}
