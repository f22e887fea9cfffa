//! Pictures and captions of jobs.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Job, Sandbox, job::text, places, reference};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use toml::Table;

/// Runs a job file on that many workers and returns the embedding that it learned.
async fn learn(sandbox: &Sandbox, job: &str, workers: u32) -> Result<Vec<u8>> {
    let out = sandbox.path(&format!("out-{job}-{workers}"));
    let workers = workers.to_string();
    let run = sandbox.finish(&["run", job, "--workers", &workers, "-o", &text(&out)]).await?;
    run.expect_code(0)?;
    fs::read(out.join("learned_embeds.safetensors")).context("the embedding")
}

/// A tensor of every microbatch in a trace: its shape and bytes.
fn traced(folder: &Path, tensor: &str) -> Result<Vec<(Vec<usize>, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.to_string_lossy().contains("-mb-") {
            let bytes = fs::read(&path)?;
            let file = SafeTensors::deserialize(&bytes)?;
            let view = file.tensor(tensor)?;
            found.push((view.shape().to_vec(), view.data().to_vec()));
        }
    }
    Ok(found)
}

/// Copies the pictures of the green star, each with the caption that `caption` says.
fn captioned_folder(sandbox: &Sandbox, name: &str, caption: impl Fn(usize) -> String) -> Result<()> {
    let folder = sandbox.path(name);
    fs::create_dir(&folder)?;
    for (number, entry) in fs::read_dir(places::green_star())?.enumerate() {
        let path = entry?.path();
        fs::copy(&path, folder.join(path.file_name().context("a name")?))?;
        let caption_file = Path::new(path.file_name().context("a name")?).with_extension("txt");
        fs::write(folder.join(caption_file), caption(number))?;
    }
    Ok(())
}

/// Copies a folder with captions, these into a metadata file.
fn listed_folder(sandbox: &Sandbox, name: &str, copy: &str) -> Result<()> {
    let (folder, copy) = (sandbox.path(name), sandbox.path(copy));
    fs::create_dir(&copy)?;
    let mut lines = String::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let name = path.file_name().context("a name")?.to_string_lossy();
        if path.extension().is_none_or(|ending| ending != "txt") {
            fs::copy(&path, copy.join(&*name))?;
            let caption = fs::read_to_string(path.with_extension("txt"))?;
            lines += &format!("{}\n", json!({ "file_name": name, "words": [caption] }));
        }
    }
    fs::write(copy.join("metadata.jsonl"), lines).context("the metadata file")
}

/// A job that learns from two folders, with captions.
fn captioned_job() -> Result<Job> {
    let folders: Table =
        toml::from_str("folders = [{ images = \"./a\", repeats = 2 }, { images = \"./b\" }]")?;
    let job = Job::toy()?
        .set("data.folders", folders["folders"].clone())
        .set("train.templates", vec!["a photo of [name], [filewords]"])
        .set("train.shuffle_tags", true)
        .set("train.keep_tags", 1)
        .set("train.caption_dropout", 0.25)
        .shared_by(2);
    Ok(job.without("data.images"))
}

#[tokio::test]
async fn captions_of_several_folders_are_learned_from_alike_on_one_and_two_workers() -> Result<()> {
    let sandbox = Sandbox::new()?;
    captioned_folder(&sandbox, "a", |number| format!("green, on white, picture, number {number}\n"))?;
    captioned_folder(&sandbox, "b", |_| "a star,\r\nshiny".to_owned())?;
    sandbox.write_job("job.toml", &captioned_job()?.set("debug.trace_dir", "trace"))?;
    let two = learn(&sandbox, "job.toml", 2).await?;
    // Prompts differ from sample to sample: 12 samples, of which the dropped ones have one prompt in common.
    let prompts: BTreeSet<Vec<u8>> = traced(&sandbox.path("trace"), "input_ids")?
        .into_iter()
        .flat_map(|(shape, bytes)| {
            bytes.chunks(bytes.len() / shape[0]).map(<[u8]>::to_vec).collect::<Vec<_>>()
        })
        .collect();
    ensure!(prompts.len() >= 6, "only {} prompts", prompts.len());
    fs::remove_dir_all(sandbox.path("trace"))?;
    ensure!(learn(&sandbox, "job.toml", 1).await? == two, "one worker leaves another embedding than two");

    // The same captions in metadata files are the same job.
    listed_folder(&sandbox, "a", "listed-a")?;
    listed_folder(&sandbox, "b", "listed-b")?;
    let folders: Table =
        toml::from_str("folders = [{ images = \"./listed-a\", repeats = 2 }, { images = \"./listed-b\" }]")?;
    let listed =
        captioned_job()?.set("data.folders", folders["folders"].clone()).set("data.caption_column", "words");
    sandbox.write_job("listed.toml", &listed)?;
    ensure!(learn(&sandbox, "listed.toml", 2).await? == two, "captions in metadata files are not the same");

    // Another caption is another job; one that pushes the token out of the prompt is none.
    captioned_folder(&sandbox, "c", |_| "a red star".to_owned())?;
    let folders: Table =
        toml::from_str("folders = [{ images = \"./a\", repeats = 2 }, { images = \"./c\" }]")?;
    sandbox.write_job("other.toml", &captioned_job()?.set("data.folders", folders["folders"].clone()))?;
    ensure!(learn(&sandbox, "other.toml", 2).await? != two, "captions do not matter");
    captioned_folder(&sandbox, "long", |_| "green ".repeat(80))?;
    let long = Job::toy()?
        .set("data.images", text(&sandbox.path("long")))
        .set("train.templates", vec!["[caption] [name]"]);
    sandbox.write_job("long.toml", &long)?;
    let refused = sandbox.finish(&["run", "long.toml", "-o", "out-long"]).await?.expect_code(1)?;
    refused.expect_said(&[".png", "cut off", "train.templates"])?;
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn a_job_with_buckets_equals_diffusers_and_itself_on_any_number_of_workers() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let checkpoint = reference::tiny_checkpoint("tiny15").await?;
    let pictures = checkpoint.parent().context("the goldens")?.join("pictures");
    let job = Job::toy()?
        .set("model.base", text(&checkpoint))
        .set("data.images", text(&pictures))
        .set("train.enable_bucket", true)
        .set("train.min_bucket_reso", 32)
        .set("train.max_bucket_reso", 128)
        .set("train.bucket_reso_steps", 16)
        .set("train.max_train_steps", 6)
        .set("train.gradient_accumulation_steps", 2)
        .shared_by(2);
    sandbox.write_job("job.toml", &job.clone().set("debug.trace_dir", "trace"))?;
    let two = learn(&sandbox, "job.toml", 2).await?;
    let shapes: BTreeSet<Vec<usize>> =
        traced(&sandbox.path("trace"), "latents")?.into_iter().map(|(shape, _)| shape).collect();
    ensure!(shapes.len() >= 3, "only {shapes:?}");

    // 1. Every microbatch computed again by diffusers.
    let trace = text(&sandbox.path("trace"));
    let replayed = reference::run_script("replay_trace.py", &[&trace, &text(&checkpoint)]).await?;
    let summary: Value = serde_json::from_str(replayed.stdout.lines().last().context("a summary")?)?;
    ensure!(summary["ok"] == true && summary["steps"] == 6, "{summary}");

    // 2. The same bytes whoever computes what; in bf16 too, where weights are laid out for one size.
    fs::remove_dir_all(sandbox.path("trace"))?;
    ensure!(learn(&sandbox, "job.toml", 1).await? == two, "one worker leaves another embedding than two");
    let bf16 = job.set("train.mixed_precision", "bf16").set("train.checkpointing_steps", 4);
    sandbox.write_job("bf16.toml", &bf16)?;
    let two = learn(&sandbox, "bf16.toml", 2).await?;
    ensure!(learn(&sandbox, "bf16.toml", 1).await? == two, "in bf16, the number of workers matters");

    // 3. The same order of buckets from a checkpoint on.
    let checkpoint = sandbox.path("out-bf16.toml-2/checkpoint-4.safetensors");
    let resume = format!("train.resume_from_checkpoint={}", text(&checkpoint));
    let resumed = ["run", "bf16.toml", "--workers", "1", "--set", &resume, "-o", "resumed"];
    sandbox.finish(&resumed).await?.expect_code(0)?;
    let resumed = fs::read(sandbox.path("resumed/learned_embeds.safetensors"))?;
    ensure!(resumed == two, "resumed, another embedding is learned");
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn while_a_new_model_is_hashed_each_rank_encodes_a_picture_and_learns_the_same() -> Result<()> {
    let sandbox = Sandbox::new()?;
    places::copy_folder(&places::toy_checkpoint(), &sandbox.path("model"))?;
    // A shard that is not read, and takes seconds to hash.
    let shard =
        fs::File::create(sandbox.path("model/unet/diffusion_pytorch_model-00001-of-00002.safetensors"))?;
    shard.set_len(2 << 30)?;
    let job = Job::toy()?.shared_by(2);
    sandbox.write_job("known.toml", &job)?;
    sandbox.write_job("new.toml", &job.set("model.base", text(&sandbox.path("model"))))?;
    // What was learned, without the model's hash beside it.
    let rows = |file: &[u8]| {
        let file = SafeTensors::deserialize(file)?;
        Ok::<_, anyhow::Error>(file.tensor("<green-star>")?.data().to_vec())
    };
    let known = rows(&learn(&sandbox, "known.toml", 1).await?)?;
    for workers in [1, 2] {
        let (out, count) = (format!("out-{workers}"), workers.to_string());
        let run = sandbox.finish(&["run", "new.toml", "--workers", &count, "-o", &out]).await?;
        run.expect_code(0)?.expect_said(&[&format!("latents: {workers} of 12 known")])?;
        let learned = fs::read(sandbox.path(&out).join("learned_embeds.safetensors"))?;
        ensure!(rows(&learned)? == known, "{workers} workers: another embedding");
    }
    sandbox.expect_no_process().await
}
