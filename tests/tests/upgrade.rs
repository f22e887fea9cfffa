//! This build continues the state of release 0.1.0: see tests/fixtures/0.1.0.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1;
use ringtune_tests::{
    Cluster, Sandbox,
    cluster::start_worker_with,
    files::{EMBEDDING, metadata, names_in},
    hub::fill_cache,
    job::text,
    places,
};
use safetensors::SafeTensors;
use serde_json::Value;

/// Where the numerics class is another one, the embeddings' numbers may differ by so much. The learning rate at the
/// end of these jobs moves them by several times as much.
const TOLERANCE: f32 = 1e-3;

fn fixtures() -> PathBuf {
    places::repository().join("tests/fixtures/0.1.0")
}

/// The output of 0.1.0, a JSON object per line.
fn shown(name: &str) -> Result<Vec<Value>> {
    let path = fixtures().join("shown").join(name);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Everything that 0.1.0 showed is shown, and equal; there may be more.
fn expect_shown(now: &Value, then: &Value) -> Result<()> {
    for (key, value) in then.as_object().context("an object")? {
        if key == "rank" && *value == -1 {
            // The coordinator's own lines, which have no rank.
            ensure!(now[key].is_null() || now[key] == -1, "{key} was {value} in 0.1.0; now: {now}");
            continue;
        }
        ensure!(now.get(key) == Some(value), "{key} was {value} in 0.1.0; now: {now}");
    }
    Ok(())
}

#[tokio::test]
async fn a_database_of_0_1_0_is_listed_watched_fetched_resumed_and_deleted() -> Result<()> {
    let sandbox = Sandbox::new()?;
    places::copy_folder(&fixtures().join("state"), &sandbox.path("coordinator"))?;
    let mut cluster = Cluster::start(&sandbox, 0).await?;
    let ask = async |arguments: &[&str]| cluster.finish(&[arguments, &["--output", "json"]].concat()).await;

    // 1. All jobs, as they were.
    let listed = ask(&["list"]).await?.expect_code(0)?.json_lines()?;
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut then = shown("list.jsonl")?;
    ensure!(listed.len() == then.len(), "{} of {} jobs are listed", listed.len(), then.len());
    for (now, then) in listed.iter().zip(&mut then) {
        if then["state"] == "QUEUED" {
            // What a job waits for is said anew.
            then.as_object_mut().context("an object")?.remove("state_reason");
        }
        expect_shown(now, then)?;
        let word = |key: &str| then[key].as_str().map(str::to_owned).context("a text");
        known.insert(word("name")?, word("job_id")?);
    }

    // 2. Their histories: events, steps, artifacts.
    for (name, job_id) in known.iter().filter(|(name, _)| *name != "queued") {
        let then = shown(&format!("{job_id}.jsonl"))?;
        let watched = ask(&["watch", job_id]).await?.json_lines()?;
        let now: Vec<&Value> = watched.iter().filter(|event| event["event"] != "progress").collect();
        ensure!(now.len() == then.len(), "{name}: {} of {} events", now.len(), then.len());
        for (now, then) in now.iter().zip(&then) {
            expect_shown(now, then).with_context(|| name.clone())?;
        }
        let events = |kind: &str| then.iter().filter(|event| event["event"] == kind).count();
        let steps = cluster.steps(job_id).await?;
        ensure!(steps.len() == events("step"), "{name}: {} steps are listed", steps.len());
        let artifacts: BTreeSet<&str> = then.iter().filter_map(|event| event["name"].as_str()).collect();
        let out = sandbox.path(name);
        ask(&["fetch", job_id, "-o", &text(&out)]).await?.expect_code(0)?;
        let fetched = fs::read_dir(&out).map(Iterator::count).unwrap_or_default();
        ensure!(fetched == artifacts.len(), "{name}: {fetched} files instead of {artifacts:?}");
    }

    // 3. The queued job runs, and a job goes on from a checkpoint of an old one.
    let home = sandbox.path("hf");
    fill_cache(&home, 0)?;
    let variables = [("HF_HOME", text(&home)), ("HF_HUB_OFFLINE", "1".to_owned())];
    let worker = start_worker_with(&sandbox, "worker", &cluster.coordinator.grpc, &variables).await?;
    cluster.workers.push(worker);
    let queued = cluster.wait_for_success(&known["queued"]).await?;
    ensure!(queued.step == 3, "{queued:?}");
    let file = text(&fixtures().join("jobs/succeeded.toml"));
    let longer = ["--resume-from", &known["succeeded"], "--set", "train.max_train_steps=6"];
    let submitted = cluster.finish(&[&["submit", &file][..], &longer].concat()).await?.expect_code(0)?;
    let resumed = submitted.stdout.trim();
    let ended = cluster.wait_for_success(resumed).await?;
    ensure!(ended.step == 6, "{ended:?}");
    let now = cluster.fetch(resumed, "resumed-now").await?;
    expect_equal(&sandbox.path("resumed"), &now, EMBEDDING)?;

    // 4. An old job can be deleted.
    let request = v1::DeleteJobRequest { job_id: known["succeeded"].clone() };
    cluster.jobs().await?.delete_job(request).await?;
    ensure!(cluster.job(&known["succeeded"]).await.is_err(), "it is still there");
    let listed = cluster.finish(&["list", "--output", "json"]).await?.expect_code(0)?.json_lines()?;
    ensure!(listed.len() == known.len(), "{listed:?}");
    Ok(())
}

#[tokio::test]
async fn checkpoints_of_0_1_0_go_on_to_the_embedding_that_0_1_0_came_to() -> Result<()> {
    let sandbox = Sandbox::new()?;
    for (job, step, workers) in [("plain", 3, "2"), ("selected", 6, "1")] {
        let then = fixtures().join(job);
        let out = format!("{job}-{step}");
        let file = text(&fixtures().join(format!("jobs/{job}.toml")));
        let checkpoint = text(&then.join(format!("checkpoint-{step}.safetensors")));
        let resume = format!("train.resume_from_checkpoint={checkpoint}");
        let arguments = ["run", &file, "-o", &out, "--workers", workers, "--set", &resume];
        let run = sandbox.finish(&arguments).await?.expect_code(0)?;
        let said = format!("resuming after step {step}");
        run.expect_said(&[&said])?;
        let mut compared = 0;
        for name in names_in(&then)?.iter().filter(|name| name.starts_with("learned_embeds")) {
            expect_equal(&then, &sandbox.path(&out), name).with_context(|| out.clone())?;
            compared += 1;
        }
        ensure!(compared == if job == "selected" { 2 } else { 1 }, "{compared} embeddings were compared");
    }
    sandbox.expect_no_process().await
}

/// The learned rows in a file of both folders are equal: to the bit where both were computed on one numerics class.
fn expect_equal(then: &Path, now: &Path, name: &str) -> Result<()> {
    let [(one_class, one), (other_class, other)] = [learned(&then.join(name))?, learned(&now.join(name))?];
    ensure!(one.len() == other.len() && !one.is_empty(), "{name}: {} and {} numbers", one.len(), other.len());
    let bits = |rows: &[f32]| rows.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
    if one_class == other_class {
        ensure!(bits(&one) == bits(&other), "{name} differs, although both are of class {one_class}");
    }
    let largest = one.iter().zip(&other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    ensure!(largest <= TOLERANCE, "{name} differs by {largest}: {one_class} and {other_class}");
    Ok(())
}

/// The numerics class of an embedding, and its numbers.
fn learned(path: &Path) -> Result<(String, Vec<f32>)> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let facts: Value = serde_json::from_str(metadata(&bytes)?.get("ringtune").context("what made it")?)?;
    let class = facts["numerics_class"].as_str().context("a numerics class")?.to_owned();
    let tensors = SafeTensors::deserialize(&bytes)?;
    let [(_, rows)] = tensors.tensors().try_into().map_err(|_| anyhow::anyhow!("not one tensor"))?;
    ensure!(rows.dtype() == safetensors::Dtype::F32, "{:?}", rows.dtype());
    let number = |bytes: &[u8]| Ok(f32::from_le_bytes(bytes.try_into()?));
    Ok((class, rows.data().chunks_exact(4).map(number).collect::<Result<_>>()?))
}
