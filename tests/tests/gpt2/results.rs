//! What a job leaves, and that it does not depend on how many worked on it or whether it was stopped.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Sandbox,
    files::{copy_alone, differences, expect_same, metadata},
    job::text,
    language_model,
    reference::run_script,
};
use safetensors::SafeTensors;

use crate::{Ground, RESULTS, run};

async fn workers_do_not_matter(precision: &str) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = Ground::lay(&sandbox).await?.job()?.set("gpt2.mixed_precision", precision);
    let file = sandbox.write_job("job.toml", &job)?;
    let mut cluster = Cluster::start(&sandbox, 1).await?;
    let one = cluster.complete(&file, "out-1").await?;
    let checkpoints = ["checkpoint-4.safetensors", "checkpoint-8.safetensors", "checkpoint-12.safetensors"];
    for workers in [2, 3, 4] {
        cluster.grow(workers).await?;
        let other = cluster.complete(&file, &format!("out-{workers}")).await?;
        expect_same(&one, &other, &[&RESULTS[..], &checkpoints].concat())
            .with_context(|| format!("{workers} workers"))?;
    }
    // The comparison can fail: another seed gives another model.
    let other = sandbox.write_job("other.toml", &job.set("gpt2.seed", 8))?;
    let other = cluster.complete(&other, "out-other").await?;
    ensure!(!differences(&one, &other, &RESULTS)?.is_empty(), "the seed does not matter");
    Ok(())
}

#[tokio::test]
async fn any_number_of_workers_writes_the_same_bytes_in_fp32() -> Result<()> {
    workers_do_not_matter("no").await
}

#[tokio::test]
async fn any_number_of_workers_writes_the_same_bytes_in_bf16() -> Result<()> {
    workers_do_not_matter("bf16").await
}

#[tokio::test]
async fn a_resumed_job_leaves_what_one_that_ran_through_leaves() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    // The lowest loss is long before the last step: what is kept of it has to come through the checkpoint.
    let job = ground
        .job()?
        .set("gpt2.learning_rate", 1.0)
        .set("gpt2.warmup_iters", 12)
        .set("gpt2.eval_interval", 2);
    sandbox.write_job("job.toml", &job)?;
    sandbox.write_job("resume.toml", &job.set("gpt2.resume_from_checkpoint", "latest"))?;
    let straight = run(&sandbox, "job.toml", 2, "straight").await?;
    let names = [&RESULTS[..], &["model-last.safetensors", "checkpoint-12.safetensors"]].concat();
    for (step, workers) in [(4, 1), (8, 3)] {
        let name = format!("checkpoint-{step}.safetensors");
        let folder = sandbox.path(&format!("from-{step}"));
        copy_alone(&straight, &name, &folder)?;
        run(&sandbox, "resume.toml", workers, &format!("from-{step}")).await?;
        expect_same(&straight, &folder, &names).with_context(|| format!("from step {step}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn a_job_leaves_a_model_that_transformers_loads() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    for (name, bias) in [("with", true), ("without", false)] {
        sandbox.write_job("job.toml", &ground.job()?.set("gpt2.bias", bias))?;
        let out = run(&sandbox, "job.toml", 2, name).await?;
        for file in ["vocab.json", "merges.txt", "metrics.csv", "job.toml", "job.log"] {
            ensure!(out.join(file).is_file(), "{file} is missing");
        }
        let said = metadata(&fs::read(out.join("model.safetensors"))?)?;
        let facts: serde_json::Value = serde_json::from_str(&said["ringtune"])?;
        ensure!(said["format"] == "pt" && facts["step"] == 12, "{said:?}");
        let loss: f64 = facts["validation_loss"].as_str().context("a loss")?.parse()?;
        let tokens = text(&ground.tokens.join("val.bin"));
        let out = out.to_string_lossy().into_owned();
        let options = "--block 32 --batch 2 --iters 3 --seed 7".split(' ');
        let arguments: Vec<&str> = ["loss", &out, &tokens].into_iter().chain(options).collect();
        let checked = run_script("replay_gpt2.py", &arguments).await?.expect_code(0)?;
        let theirs: f64 = checked.stdout.trim().parse()?;
        ensure!((theirs - loss).abs() < 1e-5 * loss, "{theirs} by transformers, {loss} by the job");
    }
    Ok(())
}

/// nanoGPT's `crop_block_size`: of the position table no row is left that was decayed and never learned.
#[tokio::test]
async fn a_pretrained_model_has_as_many_positions_afterwards_as_its_windows_had() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    language_model::make(&sandbox.path("pretrained"))?;
    let job = ground
        .job()?
        .set("model.base", text(&sandbox.path("pretrained")))
        .set("gpt2.init_from", "pretrained")
        .set("gpt2.block_size", 8);
    sandbox.write_job("job.toml", &job)?;
    sandbox.write_job("resume.toml", &job.set("gpt2.resume_from_checkpoint", "latest"))?;
    let one = run(&sandbox, "job.toml", 1, "one").await?;
    let bytes = fs::read(one.join("model.safetensors"))?;
    let table = SafeTensors::deserialize(&bytes)?.tensor("transformer.wpe.weight")?.shape().to_vec();
    ensure!(table == [8, 48], "{table:?}");
    let config: serde_json::Value = serde_json::from_slice(&fs::read(one.join("config.json"))?)?;
    ensure!(config["n_positions"] == 8 && config["n_embd"] == 48, "{config}");
    // Its checkpoints have as many too, and it is a model like others.
    let again = sandbox.path("again");
    copy_alone(&one, "checkpoint-4.safetensors", &again)?;
    run(&sandbox, "resume.toml", 3, "again").await?;
    let names = [&RESULTS[..], &["model-last.safetensors", "checkpoint-12.safetensors"]].concat();
    expect_same(&one, &again, &names)?;
    let made =
        sandbox.finish(&["generate-text", "one", "--prompt", "the star", "--max-new-tokens", "20"]).await?;
    made.expect_code(0)?.expect_said(&["longer than the model's 8 positions"])?;
    // A window that it has no room for.
    let long = ground.job()?.set("model.base", text(&sandbox.path("pretrained"))).set("gpt2.block_size", 33);
    sandbox.write_job("long.toml", &long.set("gpt2.init_from", "pretrained"))?;
    let refused = sandbox.finish(&["run", "long.toml", "-o", "long"]).await?;
    let said = "gpt2.block_size: 33; allowed: 1 to 32, the longest text of model.base";
    ensure!(refused.code != Some(0) && refused.stderr.contains(said), "{}", refused.stderr);
    sandbox.expect_no_process().await
}

/// Steps are compared where the job took the hash of its state; a wrong hash would end it.
#[tokio::test]
async fn a_job_is_verified_where_its_ranks_compared_their_states() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = Ground::lay(&sandbox).await?.job()?.set("gpt2.compare_interval", 5);
    let file = sandbox.write_job("job.toml", &job)?;
    let cluster = Cluster::start(&sandbox, 2).await?;
    let id = cluster.submit(&file).await?;
    cluster.wait_for_end(&id).await?;
    let verified = cluster.finish(&["verify", &id]).await?.expect_code(0)?;
    let said = format!("{}{}", verified.stdout, verified.stderr);
    ensure!(said.contains("same: steps 1 to 12"), "{said}");
    let part = cluster.finish(&["verify", &id, "--steps", "6-10"]).await?;
    part.expect_code(0)?;
    // No hash was taken there.
    let refused = cluster.finish(&["verify", &id, "--steps", "6-9"]).await?;
    ensure!(refused.code != Some(0) && refused.stderr.contains("step 9 of job"), "{}", refused.stderr);
    Ok(())
}
