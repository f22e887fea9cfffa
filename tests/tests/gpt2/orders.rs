//! Texts that are ordered of a job that learns.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use ringtune_tests::{Cluster, Sandbox, job::text};
use serde_json::Value;

use crate::Ground;

const PROMPT: &str = "the star";

/// What a text's file, or `generate-text --output json`, says of it.
fn made(json: &str) -> Result<[Value; 3]> {
    let made: Value = serde_json::from_str(json)?;
    Ok(["prompt_tokens", "tokens", "text"].map(|key| made[key].clone()))
}

/// The text of order `order`, and the step after which it was made.
fn text_of(folder: &Path, order: u32) -> Result<(i64, [Value; 3])> {
    let begin = format!("sample-{order}-");
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(step) = name.strip_prefix(&begin).and_then(|rest| rest.strip_suffix(".json")) {
            return Ok((step.parse()?, made(&fs::read_to_string(folder.join(&name))?)?));
        }
    }
    anyhow::bail!("order {order} left no text in {}", folder.display())
}

#[tokio::test]
async fn a_text_is_that_of_the_model_after_the_step_whoever_dies() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    // Of the last step, not of the one with the lowest loss.
    let job = ground.job()?.set("gpt2.max_iters", 400).set("gpt2.select_best", false);
    let job = job.set("cluster.world_size", 2);
    let mut cluster = Cluster::start(&sandbox, 2).await?;
    let id = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    cluster.wait_for_step(&id, 3).await?;
    // 1. Rank 0 is gone as soon as a text is ordered; then there is one of the last step.
    cluster.finish(&["order", &id, "--prompt", PROMPT]).await?.expect_code(0)?;
    cluster.daemon("worker-1")?.end().await?;
    cluster.start_again("worker-1").await?;
    let step = cluster.job(&id).await?.step;
    cluster.wait_for_step(&id, step + 4).await?;
    let last = cluster.job(&id).await?.step + 20;
    let after = last.to_string();
    for order in [&["--prompt", PROMPT][..], &["--stop"]] {
        let line = [&["order", &id], order, &["--after", &after]].concat();
        cluster.finish(&line).await?.expect_code(0)?;
    }
    let folder = cluster.result(&id, "out").await?;
    // 2. That one is the text of the model that was saved.
    let (first, _) = text_of(&folder, 1)?;
    let (step, ordered) = text_of(&folder, 2)?;
    ensure!(step == last && first < last, "after {first} and {step} instead of {last}");
    let options = ["--seed", "7", "--precision", "fp32", "--threads", "1", "--output", "json"];
    let model = text(&folder);
    let line = [&["generate-text", &model, "--prompt", PROMPT][..], &options].concat();
    let finished = sandbox.finish(&line).await?.expect_code(0)?;
    ensure!(made(&finished.stdout)? == ordered, "{ordered:?} instead of {}", finished.stdout);
    // 3. The log shows both.
    let log = fs::read_to_string(folder.join("job.log"))?;
    for order in [1, 2] {
        let said = format!("order {order}: text (");
        ensure!(log.contains(&said), "{said} is not in {log}");
    }
    Ok(())
}

#[tokio::test]
async fn without_a_tokenizer_training_goes_on_without_a_text() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    for name in ["vocab.json", "merges.txt"] {
        fs::remove_file(ground.base.join(name))?;
    }
    let job = ground.job()?.set("gpt2.max_iters", 40).set("cluster.world_size", 1);
    let cluster = Cluster::start(&sandbox, 1).await?;
    let id = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    cluster.wait_for_step(&id, 2).await?;
    cluster.finish(&["order", &id, "--prompt", PROMPT]).await?.expect_code(0)?;
    let folder = cluster.result(&id, "out").await?;
    let log = fs::read_to_string(folder.join("job.log"))?;
    ensure!(log.contains("order 1: model.base: "), "{log}");
    Ok(())
}
