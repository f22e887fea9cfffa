//! The whole of a job against diffusers: its trace replayed, and its result used.

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Job, Sandbox, job::text, places, reference};
use serde_json::Value;

/// Runs 20 steps on a tiny checkpoint with two workers, with a trace. `options`: more of `[train]`.
async fn train(
    sandbox: &Sandbox,
    checkpoint: &str,
    precision: &str,
    num_vectors: u32,
    options: &[(&str, toml::Value)],
) -> Result<()> {
    let job = Job::toy()?
        .set("model.base", checkpoint)
        .set("train.train_batch_size", 2)
        .set("train.max_train_steps", 20)
        .set("train.learning_rate", 0.005)
        .set("train.lr_scheduler", "linear")
        .set("train.lr_warmup_steps", 4)
        .set("train.gradient_accumulation_steps", 2)
        .set("train.num_vectors", i64::from(num_vectors))
        .set("train.mixed_precision", precision)
        .set("cluster.world_size", 2)
        .set("debug.trace_dir", "trace");
    let job = options.iter().fold(job, |job, (key, value)| job.set(&format!("train.{key}"), value.clone()));
    sandbox.write_job("job.toml", &job)?;
    sandbox.finish(&["run", "job.toml", "-o", "out"]).await?.expect_code(0)?;
    Ok(())
}

/// Runs the job, and lets diffusers compute its 20 steps again.
async fn replay(preset: &str, precision: &str, num_vectors: u32) -> Result<()> {
    let checkpoint = text(&reference::tiny_checkpoint(preset).await?);
    let sandbox = Sandbox::new()?;
    train(&sandbox, &checkpoint, precision, num_vectors, &[]).await?;
    let vectors = num_vectors.to_string();
    let arguments = ["--precision", precision, "--vectors", &vectors];
    let summary = replayed(&sandbox, &checkpoint, &arguments).await?;
    ensure!(summary["ok"] == true && summary["steps"] == 20, "{summary}");
    Ok(())
}

/// Last line of the replay of the job's trace.
async fn replayed(sandbox: &Sandbox, checkpoint: &str, arguments: &[&str]) -> Result<Value> {
    let trace = text(&sandbox.path("trace"));
    let all: Vec<&str> = [&trace, checkpoint].into_iter().chain(arguments.iter().copied()).collect();
    let finished = reference::run_script("replay_trace.py", &all).await?;
    let last = finished.stdout.lines().last().with_context(|| format!("it says nothing: {finished:?}"))?;
    serde_json::from_str(last).with_context(|| format!("its last line: {last}"))
}

/// Every option of the optimizer, the schedule, the loss and the noise set to something else than its default.
/// `max_grad_norm` clips some of the steps, and not all.
async fn replay_all_options(checkpoint: &str, max_grad_norm: f64) -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    let options: [(&str, toml::Value); 10] = [
        ("adam_beta1", 0.8.into()),
        ("adam_beta2", 0.95.into()),
        ("adam_weight_decay", 0.1.into()),
        ("adam_epsilon", 1e-5.into()),
        ("lr_scheduler", "cosine_with_restarts".into()),
        ("lr_num_cycles", 3.into()),
        ("center_crop", true.into()),
        ("max_grad_norm", max_grad_norm.into()),
        ("snr_gamma", 1.5.into()),
        ("noise_offset", 0.5.into()),
    ];
    train(&sandbox, checkpoint, "no", 2, &options).await?;
    let norm = max_grad_norm.to_string();
    let optimizer = ["--betas", "0.8", "0.95", "--weight-decay", "0.1", "--epsilon", "1e-5"];
    let rest = [
        "--max-grad-norm",
        &norm,
        "--snr-gamma",
        "1.5",
        "--noise-offset",
        "0.5",
        "--max-update-error",
        "1e-3",
    ];
    let summary = replayed(&sandbox, checkpoint, &[&optimizer[..], &rest].concat()).await?;
    ensure!(summary["ok"] == true && summary["steps"] == 20, "{summary}");
    let clipped = summary["clipped_steps"].as_u64();
    ensure!(clipped.is_some_and(|clipped| 0 < clipped && clipped < 20), "no clipping to compare: {summary}");
    Ok(sandbox)
}

#[tokio::test]
async fn a_stable_diffusion_1_trace_is_diffusers_own_in_fp32() -> Result<()> {
    replay("tiny15", "no", 1).await
}

#[tokio::test]
async fn a_stable_diffusion_1_trace_is_diffusers_own_in_bf16() -> Result<()> {
    replay("tiny15", "bf16", 2).await
}

#[tokio::test]
async fn a_stable_diffusion_2_trace_is_diffusers_own_in_fp32() -> Result<()> {
    replay("tiny2", "no", 2).await
}

#[tokio::test]
async fn a_stable_diffusion_2_trace_is_diffusers_own_in_bf16() -> Result<()> {
    replay("tiny2", "bf16", 1).await
}

#[tokio::test]
async fn a_stable_diffusion_1_job_with_every_option_set_is_diffusers_own() -> Result<()> {
    let checkpoint = text(&reference::tiny_checkpoint("tiny15").await?);
    let sandbox = replay_all_options(&checkpoint, 0.09).await?;
    // The comparison can fail: the same trace is nothing like a run without the options.
    let plain =
        replayed(&sandbox, &checkpoint, &["--max-update-error", "1e-3", "--first-steps", "5"]).await?;
    for bound in ["loss_error", "grad_error", "embeds_error", "update_error"] {
        ensure!(plain["failed"].as_array().is_some_and(|failed| failed.contains(&bound.into())), "{plain}");
    }
    Ok(())
}

#[tokio::test]
async fn a_stable_diffusion_2_job_with_every_option_set_is_diffusers_own() -> Result<()> {
    let checkpoint = text(&reference::tiny_checkpoint("tiny2").await?);
    replay_all_options(&checkpoint, 0.02).await?;
    Ok(())
}

/// Replays so many sets of options that have `only` in them; without it the script replays 22, in minutes.
async fn replay_sets(only: &str, sets: usize) -> Result<()> {
    let program = text(&places::program("ringtune")?);
    let arguments = ["--ringtune", &program, "--only", only];
    let finished = reference::run_script("replay_options.py", &arguments).await?;
    let rows = finished.stdout.lines().filter(|line| line.ends_with("| same |")).count();
    ensure!(rows == sets, "{finished:?}");
    finished.expect_code(0)?;
    Ok(())
}

/// The options that no other test replays, each with another one.
#[tokio::test]
async fn learning_rates_and_rescaled_schedules_are_diffusers_own() -> Result<()> {
    replay_sets("0.005:1, 1e-3", 1).await?;
    replay_sets("rescale_betas_zero_snr = true, snr_gamma", 1).await
}

#[tokio::test]
async fn learning_rates_and_rescaled_schedules_alone_are_diffusers_own() -> Result<()> {
    replay_sets("learning_rates", 2).await?;
    replay_sets("rescale_betas_zero_snr", 2).await
}

#[tokio::test]
async fn the_original_layout_is_the_one_that_diffusers_reads() -> Result<()> {
    reference::run_script("original_layout.py", &["check"]).await?.expect_code(0)?;
    Ok(())
}

#[tokio::test]
async fn diffusers_loads_the_demos_embedding_and_draws_green_stars() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = text(&places::repository().join("tests/fixtures/demo/green-star.toml"));
    sandbox.finish(&["run", &job, "-o", "out"]).await?.expect_code(0)?;
    let embeds = text(&sandbox.path("out/learned_embeds.safetensors"));
    let checkpoint = text(&places::toy_checkpoint());
    let arguments = [&embeds, &checkpoint, "--count", "8", "--min-right", "6"];
    reference::run_script("check_embeds.py", &arguments).await?.expect_code(0)?;
    Ok(())
}
