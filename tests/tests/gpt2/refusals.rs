//! What cannot be trained on is said before the first step.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Job, Sandbox, job::text};

use crate::Ground;

/// Runs a job that has to fail, and says the texts that it has to have said.
async fn expect_refused(sandbox: &Sandbox, job: &Job, texts: &[&str]) -> Result<()> {
    sandbox.write_job("job.toml", job)?;
    let run = sandbox.finish(&["run", "job.toml", "-o", "out"]).await?;
    ensure!(run.code != Some(0), "it was taken: {}", run.stderr);
    for text in texts {
        ensure!(run.stderr.contains(text), "{text:?} was not said: {}", run.stderr);
    }
    ensure!(!run.stderr.contains("panicked"), "{}", run.stderr);
    Ok(())
}

#[tokio::test]
async fn files_of_tokens_that_are_none_are_named() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    let job = ground.job()?.set("cluster.world_size", 1);
    let (train, meta) = (ground.tokens.join("train.bin"), ground.tokens.join("meta.json"));
    let (good, good_meta) = (fs::read(&train)?, fs::read_to_string(&meta)?);
    // 1. An odd number of bytes; another file than meta.json says.
    fs::write(&train, &good[..good.len() - 1])?;
    expect_refused(&sandbox, &job, &["gpt2.tokens", "train.bin", "allowed: an even number"]).await?;
    fs::write(&train, &good[..good.len() - 2])?;
    expect_refused(&sandbox, &job, &["gpt2.tokens", "train.bin", "by meta.json"]).await?;
    let mut flipped = good.clone();
    flipped[100] ^= 1;
    fs::write(&train, &flipped)?;
    expect_refused(&sandbox, &job, &["gpt2.tokens", "it was changed"]).await?;
    fs::write(&train, &good)?;
    // 2. No manifest, or none that is one.
    fs::write(&meta, "{}")?;
    expect_refused(&sandbox, &job, &["gpt2.tokens", "is no manifest of prepare-text"]).await?;
    fs::remove_file(&meta)?;
    expect_refused(&sandbox, &job, &["gpt2.tokens", "meta.json"]).await?;
    fs::write(&meta, good_meta)?;
    // 3. A window that is longer than the file, or than the model's texts.
    let validation = fs::metadata(ground.tokens.join("val.bin"))?.len() / 2;
    let long = job.clone().set("gpt2.block_size", i64::try_from(validation)?);
    expect_refused(&sandbox, &long, &["gpt2.tokens", "val.bin", "a block of"]).await?;
    // 4. Ids that the model does not have.
    let config = ground.base.join("config.json");
    let small = fs::read_to_string(&config)?.replace("557", "300");
    fs::write(&config, small)?;
    expect_refused(&sandbox, &job, &["gpt2.tokens", "allowed: ids below 300, the model's vocabulary"]).await
}

#[tokio::test]
async fn models_that_are_none_are_named() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    let job = ground.job()?.set("cluster.world_size", 1);
    // 1. No weights where some are to be trained on.
    let pretrained = job.clone().set("gpt2.init_from", "pretrained");
    expect_refused(&sandbox, &pretrained, &["model.base", "model.safetensors"]).await?;
    // 2. A shape that does not go together.
    expect_refused(&sandbox, &job.clone().set("gpt2.n_head", 5), &["gpt2.n_embd", "multiple"]).await?;
    // 3. No model at all.
    fs::write(ground.base.join("config.json"), "{\"model_type\": \"llama\"}")?;
    expect_refused(&sandbox, &job, &["model.base", "config.json"]).await?;
    fs::remove_file(ground.base.join("config.json"))?;
    expect_refused(&sandbox, &job, &["model.base", "config.json"]).await
}

#[tokio::test]
async fn a_checkpoint_of_another_model_is_refused() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    let job = ground.job()?.set("cluster.world_size", 1);
    sandbox.write_job("job.toml", &job)?;
    sandbox.finish(&["run", "job.toml", "-o", "first"]).await?.expect_code(0)?;
    let checkpoint = text(&sandbox.path("first").join("checkpoint-8.safetensors"));
    let wider = job.clone().set("gpt2.n_embd", 64).set("gpt2.resume_from_checkpoint", checkpoint.clone());
    expect_refused(&sandbox, &wider, &["resume_from_checkpoint", "n_embd"]).await?;
    // Damaged in the middle: told, whatever its header says.
    let mut bytes = fs::read(&checkpoint)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let damaged = text(&sandbox.path("damaged.safetensors"));
    fs::write(&damaged, bytes)?;
    let resumed = job.set("gpt2.resume_from_checkpoint", damaged);
    expect_refused(&sandbox, &resumed, &["resume_from_checkpoint", "not a checkpoint"])
        .await
        .context("a damaged checkpoint")
}
