//! The learned embedding does not depend on how many workers trained it.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Job, Sandbox,
    files::{expect_same, metadata, names_in},
};
use safetensors::{Dtype, SafeTensors};

/// A job whose global batch any number of workers up to six can share.
fn job(precision: &str) -> Result<Job> {
    Ok(Job::toy()?
        .shared_by(6)
        .set("train.train_batch_size", 1)
        .set("train.num_vectors", 2)
        .set("train.mixed_precision", precision))
}

/// The files that depend on the job alone.
const RESULTS: [&str; 3] =
    ["learned_embeds.safetensors", "learned_embeds-emb_params.safetensors", "README.md"];

/// Has the job done by all workers and returns its results' files.
async fn learn(cluster: &Cluster<'_>, job: &Path, out: &str) -> Result<Vec<Vec<u8>>> {
    let out = cluster.complete(job, out).await?;
    RESULTS.iter().map(|name| fs::read(out.join(name)).context(*name)).collect()
}

async fn workers_do_not_matter(precision: &str) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let file = sandbox.write_job("job.toml", &job(precision)?)?;
    let mut cluster = Cluster::start(&sandbox, 1).await?;
    let one = learn(&cluster, &file, "out-1").await?;
    for workers in [2, 3] {
        cluster.grow(workers).await?;
        let other = learn(&cluster, &file, &format!("out-{workers}")).await?;
        for (name, (one, other)) in RESULTS.iter().zip(one.iter().zip(&other)) {
            ensure!(one == other, "{workers} workers leave another {name} than one");
        }
    }
    // The comparison can fail: another seed gives another embedding.
    let file = sandbox.write_job("other.toml", &job(precision)?.set("train.seed", 8))?;
    let other = learn(&cluster, &file, "out-other").await?;
    ensure!(one.iter().zip(&other).all(|(one, other)| one != other), "the seed does not matter");
    Ok(())
}

#[tokio::test]
async fn one_two_and_three_workers_write_the_same_bytes_in_fp32() -> Result<()> {
    workers_do_not_matter("no").await
}

#[tokio::test]
async fn one_two_and_three_workers_write_the_same_bytes_in_bf16() -> Result<()> {
    workers_do_not_matter("bf16").await
}

#[tokio::test]
async fn a_job_submitted_again_from_what_the_coordinator_has_gives_the_same_bytes() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start_fake(&sandbox, 1).await?;
    let file = sandbox.write_job("job.toml", &Job::toy()?)?;
    let first = cluster.submit(&file).await?;
    cluster.wait_for_end(&first).await?;
    let again = cluster.finish(&["submit", "--again", &first]).await?.expect_code(0)?.stdout;
    cluster.wait_for_end(again.trim()).await?;
    ensure!(first != again.trim());
    expect_same(
        &cluster.fetch(&first, "first").await?,
        &cluster.fetch(again.trim(), "again").await?,
        &RESULTS,
    )
}

#[tokio::test]
async fn a_run_leaves_its_artifacts_and_nothing_else() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = Job::toy()?.set("train.num_vectors", 2).set("train.save_steps", 2).set("cluster.world_size", 2);
    sandbox.write_job("job.toml", &job)?;
    let run = sandbox.finish(&["run", "job.toml", "-o", "out", "--output", "json"]).await?.expect_code(0)?;

    // 1. What was said: one object a line, the job's first, its last event success.
    let lines = run.json_lines()?;
    let first = &lines[0];
    ensure!(first["type"] == "job" && first["job_id"].as_str().is_some_and(|id| id.len() == 36), "{first}");
    let states: Vec<&str> = lines
        .iter()
        .filter(|line| line["event"] == "state_change")
        .filter_map(|line| line["state"].as_str())
        .collect();
    ensure!(states.ends_with(&["PREPARING", "RUNNING", "SUCCEEDED"]), "{states:?}");
    let steps: Vec<i64> = lines
        .iter()
        .filter(|line| line["event"] == "step")
        .filter_map(|line| line["step"].as_i64())
        .collect();
    ensure!(steps == [1, 2, 3], "{steps:?}");

    // 2. The files.
    let names = names_in(&sandbox.path("out"))?;
    ensure!(
        names
            == [
                "README.md",
                "events.out.tfevents.ringtune",
                "job-sources.json",
                "job.log",
                "job.toml",
                "learned_embeds-emb_params.safetensors",
                "learned_embeds-steps-2.safetensors",
                "learned_embeds.safetensors",
                "metrics.csv"
            ],
        "{names:?}"
    );
    let files = [
        ("learned_embeds-steps-2.safetensors", "<green-star>", "2"),
        ("learned_embeds-emb_params.safetensors", "emb_params", "3"),
        ("learned_embeds.safetensors", "<green-star>", "3"),
    ];
    for (name, key, step) in files {
        let bytes = fs::read(sandbox.path("out").join(name))?;
        let tensors = SafeTensors::deserialize(&bytes)?;
        ensure!(tensors.names() == [key], "{:?}", tensors.names());
        let rows = tensors.tensor(key)?;
        let kind = (rows.dtype(), rows.shape());
        ensure!(kind == (Dtype::F32, &[2, 64][..]), "{kind:?}");
        let metadata = metadata(&bytes)?;
        ensure!(metadata["format"] == "pt" && metadata["modelspec.title"] == "toy", "{metadata:?}");
        ensure!(metadata["ringtune.step"] == step && metadata["ringtune.seed"] == "7", "{metadata:?}");
        ensure!(metadata["ringtune.placeholder_token"] == "<green-star>", "{metadata:?}");
        ensure!(metadata["ringtune.initializer_token"] == "star", "{metadata:?}");
        serde_json::from_str::<serde_json::Value>(&metadata["ringtune"])?;
        // Nothing of this machine is in it, and nobody's clock.
        let all = format!("{metadata:?}");
        ensure!(!all.contains(&*sandbox.path("").to_string_lossy()) && !all.contains("/fixtures/"), "{all}");
    }
    let card = fs::read_to_string(sandbox.path("out/README.md"))?;
    ensure!(
        card.starts_with("---\nbase_model: \"toy-sd\"\n") && card.contains("after step 3 of 3"),
        "{card}"
    );
    ensure!(!card.contains("/fixtures/"), "{card}");
    let metrics = fs::read_to_string(sandbox.path("out/metrics.csv"))?;
    ensure!(
        metrics.lines().next()
            == Some(
                "step,loss,lr,step_seconds,compute_seconds,exchange_seconds,wait_seconds,\
                 validation_loss,validation_seconds,preview_seconds,hidden_exchange_seconds,sent_bytes,bus_bytes_per_second"
            ),
        "{metrics}"
    );
    // Nothing is below zero, not even a zero.
    ensure!(metrics.lines().count() == 4 && !metrics.contains(",-"), "{metrics}");

    // 3. Nothing is left of the run itself.
    sandbox.expect_no_process().await?;
    let runs = fs::read_dir(sandbox.path("state/ringtune/runs"))?
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
        .count();
    ensure!(runs == 0, "{runs} run folders are left");
    Ok(())
}
