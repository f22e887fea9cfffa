//! Jobs of kind "lora": adapters are learned from pictures with captions.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use ringtune_shared::lora::{Format, LoraFile};
use ringtune_tests::{
    Cluster, Job, Sandbox,
    files::{copy_alone, expect_same, metadata},
    job::text,
    places, reference,
};
use rustix::process::Signal;
use safetensors::SafeTensors;
use toml::{Table, Value};

/// The files that depend on the job alone.
const RESULTS: [&str; 3] = ["pytorch_lora_weights.safetensors", "my_toy.safetensors", "README.md"];

/// Six steps on up to three workers, of the green stars, half of which have a caption of their own.
fn job(sandbox: &Sandbox, precision: &str) -> Result<Job> {
    let folder = sandbox.path("pictures");
    fs::create_dir_all(&folder)?;
    let mut lines = String::new();
    for (number, entry) in fs::read_dir(places::green_star())?.enumerate() {
        let (from, name) = (entry?.path(), format!("{number}.png"));
        fs::copy(&from, folder.join(&name))?;
        let caption = if number % 2 == 0 { "a green star" } else { "a star, green, on black" };
        lines += &format!("{{\"file_name\": {name:?}, \"text\": {caption:?}}}\n");
    }
    fs::write(folder.join("metadata.jsonl"), lines)?;
    let table: Table = toml::from_str(
        r#"
        kind = "lora"
        name = "my toy"
        [model]
        [data]
        images = "./pictures"
        [train]
        resolution = 64
        train_batch_size = 1
        max_train_steps = 6
        learning_rate = 0.01
        lr_scheduler = "cosine"
        lr_warmup_steps = 0
        seed = 7
        checkpointing_steps = 2
        save_steps = 4
        caption_dropout = 0.2
        shuffle_tags = true
        validation_loss_steps = 3
        validation_loss_samples = 4
        validation_prompt = "a green star"
        num_validation_images = 2
        validation_steps = 6
        [lora]
        rank = 2
        alpha = 3
        [cluster]
        world_size = 6
        min_world_size = 1
        threads_per_rank = 1
        "#,
    )?;
    Ok(Job::of(table)
        .set("model.base", text(&places::toy_checkpoint()))
        .set("train.mixed_precision", precision))
}

#[tokio::test]
async fn any_number_of_workers_learns_the_same_adapters_and_goes_on_to_them() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = job(&sandbox, "no")?;
    sandbox.write_job("job.toml", &job)?;
    sandbox.write_job("resume.toml", &job.set("train.resume_from_checkpoint", "latest"))?;
    // 1. One worker, two, three and five.
    for workers in ["1", "2", "3", "5"] {
        let run = sandbox.finish(&["run", "job.toml", "--workers", workers, "-o", workers]).await?;
        run.expect_code(0)?;
        let folder = sandbox.path(workers);
        expect_same(&sandbox.path("1"), &folder, &RESULTS)?;
        let others = ["pytorch_lora_weights-steps-4.safetensors", "checkpoint-6.safetensors"];
        expect_same(&sandbox.path("1"), &folder, &others)?;
        expect_same(&sandbox.path("1"), &folder, &["preview-6-1.png"])?;
    }
    // 2. From the middle, on another number.
    let folder = sandbox.path("resumed");
    copy_alone(&sandbox.path("3"), "checkpoint-2.safetensors", &folder)?;
    let run = sandbox.finish(&["run", "resume.toml", "--workers", "2", "-o", "resumed"]).await?;
    run.expect_code(0)?.expect_said(&["resuming after step 2"])?;
    expect_same(&sandbox.path("1"), &folder, &RESULTS)?;
    // 3. What the files are. Where the pictures are is in none of them.
    for (name, format) in [(RESULTS[0], Format::Diffusers), (RESULTS[1], Format::Kohya)] {
        let bytes = fs::read(sandbox.path(&format!("1/{name}")))?;
        let metadata = metadata(&bytes)?;
        let facts: serde_json::Value = serde_json::from_str(&metadata["ringtune"])?;
        ensure!(facts["step"] == 6 && facts["job"]["lora"]["alpha"] == 3.0, "{facts}");
        ensure!(!metadata["ringtune"].contains("pictures\""), "{metadata:?}");
        // The toy's layers are fewer and narrower than those of any base that there is.
        let refused = LoraFile::from_bytes(&bytes).err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(refused.contains("Stable Diffusion 1"), "{format:?}: {refused}");
    }
    // 4. diffusers takes both, and multiplies by what alpha says.
    let checkpoint = text(&places::toy_checkpoint());
    let checked = reference::run_script("check_lora.py", &[&checkpoint, &text(&sandbox.path("1"))]).await?;
    checked.expect_code(0)?;
    sandbox.expect_no_process().await
}

/// Name, shape and bytes of each tensor of a file.
fn tensors(path: &Path) -> Result<BTreeMap<String, (Vec<usize>, Vec<u8>)>> {
    let bytes = fs::read(path).with_context(|| text(path))?;
    let tensors = SafeTensors::deserialize(&bytes)?;
    let tensors = tensors
        .iter()
        .map(|(name, tensor)| (name.to_owned(), (tensor.shape().to_vec(), tensor.data().to_vec())));
    Ok(tensors.collect())
}

#[tokio::test]
async fn what_was_learned_is_gone_on_from_and_drawn_with() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = job(&sandbox, "no")?.set("train.max_train_steps", 2).set("train.validation_prompt", "");
    sandbox.write_job("job.toml", &job)?;
    sandbox.finish(&["run", "job.toml", "-o", "first"]).await?.expect_code(0)?;
    // 1. Who learns nothing has what it went on from, whichever file that is.
    let stays = job.clone().set("train.learning_rate", 0.0);
    for (out, name) in [("diffusers", RESULTS[0]), ("kohya", RESULTS[1])] {
        let file = format!("first/{name}");
        sandbox.write_job("second.toml", &stays.clone().set("lora.initializer_lora", file.as_str()))?;
        sandbox.finish(&["run", "second.toml", "--workers", "2", "-o", out]).await?.expect_code(0)?;
        let [before, after] = ["first", out].map(|folder| sandbox.path(&format!("{folder}/{}", RESULTS[0])));
        ensure!(tensors(&before)? == tensors(&after)?, "{name}: the factors are others");
    }
    // 2. A job draws with it what the command does, and something else than without it.
    let checkpoint = text(&places::toy_checkpoint());
    let (prompt, lora) = ("a green star", format!("first/{}", RESULTS[1]));
    let drawing = |loras: &str| -> Result<Job> {
        Ok(Job::of(toml::from_str(&format!(
            "kind = \"generate\"\nname = \"stars\"\n[model]\nbase = {checkpoint:?}\n[generate]\n\
             prompts = [{prompt:?}, \"a heart\"]\nsteps = 4\nseed = 5\nloras = {loras}\n\
             [cluster]\nworld_size = 2\nthreads_per_rank = 1\n"
        ))?))
    };
    for (out, loras) in
        [("with", format!("[{{ file = {lora:?}, weight = 2.5 }}]")), ("without", "[]".to_owned())]
    {
        let file = format!("{out}.toml");
        sandbox.write_job(&file, &drawing(&loras)?)?;
        sandbox.finish(&["run", &file, "-o", out]).await?.expect_code(0)?;
    }
    let weighted = format!("{lora}:2.5");
    let line = ["generate", "--model", &checkpoint, "--prompt", prompt, "--lora", &weighted, "--steps", "4"];
    let same = ["--seed", "5", "--mixed-precision", "no", "--threads", "1", "-o", "command.png"];
    sandbox.finish(&[&line[..], &same].concat()).await?.expect_code(0)?;
    let drawn = |name: &str| fs::read(sandbox.path(name)).with_context(|| name.to_owned());
    ensure!(drawn("with/image-0001.png")? == drawn("command.png")?, "the command draws another picture");
    for number in 1..=2 {
        let name = format!("image-{number:04}.png");
        let [with, without] = ["with", "without"].map(|folder| {
            image::open(sandbox.path(&format!("{folder}/{name}"))).map(|image| image.to_rgb8())
        });
        ensure!(with? != without?, "{name}: the LoRA changes nothing");
    }
    // 3. What a job draws with is said before it is.
    let doctor = sandbox.finish(&["doctor", "with.toml"]).await?.expect_code(0)?;
    ensure!(doctor.stdout.contains("my_toy x 2.5 (sha256 "), "{}", doctor.stdout);
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn a_worker_that_dies_costs_no_step_and_bf16_has_one_result_too() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = job(&sandbox, "bf16")?.set("lora.targets", "all").set("train.validation_prompt", "");
    sandbox.write_job("job.toml", &job)?;
    sandbox.finish(&["run", "job.toml", "-o", "whole"]).await?.expect_code(0)?;
    let mut cluster = Cluster::start(&sandbox, 2).await?;
    let id = cluster.submit(&sandbox.path("job.toml")).await?;
    cluster.wait_for_step(&id, 1).await?;
    cluster.signal("worker-1", Signal::KILL)?;
    cluster.wait_for_success(&id).await?;
    cluster.result(&id, "survived").await?;
    expect_same(&sandbox.path("whole"), &sandbox.path("survived"), &RESULTS)?;
    Ok(())
}

#[tokio::test]
async fn what_makes_no_sense_is_told_before_the_first_step() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = job(&sandbox, "no")?;
    let without = job.clone().set("data.images", "./bare");
    fs::create_dir_all(sandbox.path("bare"))?;
    fs::copy(sandbox.path("pictures/0.png"), sandbox.path("bare/a.png"))?;
    let targets = |target: &str| job.clone().set("lora.targets", Value::Array(vec![target.into()]));
    for (job, said) in [
        (targets("attn3.to_q"), "lora.targets: \"attn3.to_q\" is the end of no layer's name"),
        (job.clone().set("lora.rank", 1000), "lora.rank: 1000 is more than "),
        (without, "a.png: it has no caption"),
    ] {
        sandbox.write_job("job.toml", &job)?;
        let refused = sandbox.finish(&["run", "job.toml", "-o", "out"]).await?;
        ensure!(refused.code != Some(0) && refused.stderr.contains(said), "{said}: {}", refused.stderr);
    }
    sandbox.expect_no_process().await
}

/// Steps of jobs with all that a step may have, replayed in diffusers and PEFT.
#[tokio::test]
async fn every_step_is_that_of_diffusers_and_peft() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let common = || -> Result<Job> {
        Ok(job(&sandbox, "no")?
            .set("train.max_train_steps", 6)
            .set("train.checkpointing_steps", 1)
            .set("train.validation_prompt", "")
            .set("train.validation_loss_steps", 0)
            .set("train.save_steps", 0)
            .set("train.snr_gamma", 5.0)
            .set("train.use_ema", true)
            .set("train.input_perturbation", 0.1)
            .set("train.train_text_encoder", true)
            .set("train.text_encoder_learning_rate", 0.002))
    };
    let dropping =
        common()?.set("lora.conv_rank", 2).set("lora.dropout", 0.25).set("lora.rank_dropout", 0.25).set(
            "lora.alpha_pattern",
            Value::Table([("mid_block".to_owned(), Value::Float(0.5))].into_iter().collect()),
        );
    let lengths = common()?.set("lora.targets", "all").set("lora.use_dora", true);
    for (name, job) in [("dropping", dropping), ("lengths", lengths)] {
        let trace = text(&sandbox.path(&format!("{name}-trace")));
        let file = format!("{name}.toml");
        sandbox.write_job(&file, &job.set("debug.trace_dir", trace.as_str()))?;
        sandbox.finish(&["run", &file, "--workers", "2", "-o", name]).await?.expect_code(0)?;
        let arguments = [text(&sandbox.path(name)), trace, text(&places::toy_checkpoint())];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let replayed = reference::run_script("replay_lora.py", &arguments).await?.expect_code(0)?;
        let seen = replayed.json_lines()?.pop().context("what was seen")?;
        ensure!(seen["steps"] == 5, "{seen}");
    }
    sandbox.expect_no_process().await
}
