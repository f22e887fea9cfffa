//! The whole of a job against diffusers: its trace replayed, and its result used.

use anyhow::{Result, ensure};
use ringtune_tests::{Job, Sandbox, job::text, places, reference};

/// Runs 20 steps on a tiny checkpoint with two workers, and lets diffusers compute them again.
async fn replay(preset: &str, precision: &str, num_vectors: u32) -> Result<()> {
    let checkpoint = text(&reference::tiny_checkpoint(preset).await?);
    let sandbox = Sandbox::new()?;
    let job = Job::toy()?
        .set("model.base", checkpoint.clone())
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
    sandbox.write_job("job.toml", &job)?;
    sandbox.finish(&["run", "job.toml", "-o", "out"]).await?.expect_code(0)?;
    let vectors = num_vectors.to_string();
    let trace = text(&sandbox.path("trace"));
    let replayed = reference::run_script(
        "replay_trace.py",
        &[&trace, &checkpoint, "--precision", precision, "--vectors", &vectors],
    )
    .await?
    .expect_code(0)?;
    ensure!(replayed.stdout.contains("\"steps\": 20"), "not all steps were compared: {}", replayed.stdout);
    Ok(())
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
