//! `data.source`: workers read pictures with captions themselves, out of tar shards, from folders and buckets.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use ringtune_tests::{
    Bucket, Job, Sandbox,
    files::{copy_alone, expect_same},
    job::text,
    places,
    process::finish,
};
use toml::Table;

/// The files that depend on the job alone.
const RESULTS: [&str; 3] = ["pytorch_lora_weights.safetensors", "stars.safetensors", "README.md"];

/// Four steps on up to two workers, from the pictures of `folder`.
fn job(folder: &Path) -> Result<Job> {
    fs::create_dir_all(folder)?;
    for (number, entry) in fs::read_dir(places::green_star())?.enumerate() {
        fs::copy(entry?.path(), folder.join(format!("{number}.png")))?;
        fs::write(folder.join(format!("{number}.txt")), format!("a green star, number {number}"))?;
    }
    let table: Table = toml::from_str(
        r#"
        kind = "lora"
        name = "stars"
        [model]
        [data]
        [train]
        resolution = 64
        train_batch_size = 1
        max_train_steps = 4
        learning_rate = 0.01
        seed = 7
        checkpointing_steps = 2
        mixed_precision = "no"
        [lora]
        rank = 2
        [cluster]
        world_size = 4
        min_world_size = 1
        threads_per_rank = 1
        "#,
    )?;
    Ok(Job::of(table).set("model.base", text(&places::toy_checkpoint())))
}

/// A tar file of all files of `folder`.
fn tar(folder: &Path) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_dir_all(".", folder)?;
    Ok(archive.into_inner()?)
}

#[tokio::test]
async fn pictures_in_a_shard_teach_what_the_same_pictures_in_a_folder_do() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let pictures = sandbox.path("pictures");
    let job = job(&pictures)?;
    let shard = tar(&pictures)?;
    fs::create_dir_all(sandbox.path("shards"))?;
    fs::write(sandbox.path("shards/stars.tar"), &shard)?;
    sandbox.write_job("folder.toml", &job.clone().set("data.images", "./pictures"))?;
    sandbox.finish(&["run", "folder.toml", "-o", "folder"]).await?.expect_code(0)?;
    // 1. One worker and two, from a shard; and from the folder, where it is.
    for (name, source, workers) in
        [("one", "./shards", "1"), ("two", "./shards/stars.tar", "2"), ("there", "./pictures", "2")]
    {
        let file = format!("{name}.toml");
        sandbox.write_job(&file, &job.clone().set("data.source", source))?;
        let run = sandbox.finish(&["run", &file, "--workers", workers, "-o", name]).await?;
        run.expect_code(0)?;
        expect_same(&sandbox.path("folder"), &sandbox.path(name), &RESULTS)?;
    }
    // 2. From a bucket.
    let bucket = Bucket::serve(&sandbox.path("shards"), "stars").await?;
    sandbox.write_job("bucket.toml", &job.clone().set("data.source", "s3://models/stars"))?;
    let mut command = sandbox.ringtune(&["run", "bucket.toml", "--workers", "2", "-o", "bucket"])?;
    command.envs(bucket.variables()).env("XDG_CACHE_HOME", sandbox.path("cache"));
    let run = finish(&mut command).await?.expect_code(0)?;
    ensure!(!run.stderr.contains(Bucket::SECRET), "the key was said:\n{}", run.stderr);
    expect_same(&sandbox.path("folder"), &sandbox.path("bucket"), &RESULTS)?;
    drop(bucket);
    // 3. What was begun with the folder goes on with the shard.
    copy_alone(&sandbox.path("folder"), "checkpoint-2.safetensors", &sandbox.path("resumed"))?;
    let resumed = job.clone().set("data.source", "./shards").set("train.resume_from_checkpoint", "latest");
    sandbox.write_job("resumed.toml", &resumed)?;
    let run = sandbox.finish(&["run", "resumed.toml", "--workers", "2", "-o", "resumed"]).await?;
    run.expect_code(0)?.expect_said(&["resuming after step 2"])?;
    expect_same(&sandbox.path("folder"), &sandbox.path("resumed"), &RESULTS)?;
    // 4. What cannot be used is told before the first step, by field, file and member.
    fs::create_dir_all(sandbox.path("cut"))?;
    fs::write(sandbox.path("cut/stars.tar"), &shard[..shard.len() / 2])?;
    for (source, said) in [
        ("./cut", "cut/stars.tar: "),
        ("./nowhere", "there is no such folder or file"),
        ("./folder.toml", "has no pictures in it"),
    ] {
        sandbox.write_job("wrong.toml", &job.clone().set("data.source", source))?;
        let refused = sandbox.finish(&["run", "wrong.toml", "-o", "wrong"]).await?;
        let is_said = refused.stderr.contains("data.source: ") && refused.stderr.contains(said);
        ensure!(refused.code != Some(0) && is_said, "{said}: {}", refused.stderr);
    }
    sandbox.expect_no_process().await
}
