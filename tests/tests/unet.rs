//! Jobs of kind "unet_finetune": the UNet's own weights are trained on pictures with captions.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Job, Sandbox,
    files::{copy_alone, expect_same, metadata},
    job::text,
    places, reference,
};
use rustix::process::Signal;
use safetensors::SafeTensors;
use toml::{Table, Value};

/// The file for diffusers.
const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";
const WITHOUT_EMA: &str = "diffusion_pytorch_model-without-ema.safetensors";

/// Six steps on up to three workers, of the example's pictures.
fn job(precision: &str) -> Result<Job> {
    let table: Table = toml::from_str(
        r#"
        kind = "unet_finetune"
        name = "my toy"
        [model]
        [data]
        [train]
        resolution = 64
        train_batch_size = 1
        max_train_steps = 6
        learning_rate = 1e-3
        lr_scheduler = "cosine"
        lr_warmup_steps = 0
        seed = 7
        checkpointing_steps = 3
        use_ema = true
        validation_loss_steps = 3
        validation_loss_samples = 4
        validation_prompt = "a photo of a green star"
        num_validation_images = 1
        validation_steps = 6
        [cluster]
        world_size = 6
        min_world_size = 1
        threads_per_rank = 1
        "#,
    )?;
    Ok(Job::of(table)
        .set("model.base", text(&places::toy_checkpoint()))
        .set("data.images", text(&places::repository().join("examples/lora/pictures")))
        .set("train.mixed_precision", precision))
}

/// A tensor's kind, shape and bytes.
type Stored = (safetensors::Dtype, Vec<usize>, Vec<u8>);

fn tensors(path: &Path) -> Result<BTreeMap<String, Stored>> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let file = SafeTensors::deserialize(&bytes)?;
    let stored = |tensor: &safetensors::tensor::TensorView| {
        (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec())
    };
    Ok(file.tensors().iter().map(|(name, tensor)| (name.clone(), stored(tensor))).collect())
}

#[tokio::test]
async fn any_number_of_workers_learns_the_same_weights_however_they_are_kept() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = job("no")?;
    let files = [WEIGHTS, WITHOUT_EMA, "README.md", "checkpoint-6.safetensors", "preview-6-0.png"];
    // 1. The same bytes for one worker, two and three, with less memory, and from the middle.
    let less = job
        .clone()
        .set("train.gradient_checkpointing", true)
        .set("train.offload", "disk")
        .set("train.shard_optimizer", true);
    let resumed = job.clone().set("train.resume_from_checkpoint", "latest");
    for (name, job, workers) in
        [("1", &job, "1"), ("2", &job, "2"), ("less", &less, "3"), ("resumed", &resumed, "2")]
    {
        if name == "resumed" {
            copy_alone(&sandbox.path("1"), "checkpoint-3.safetensors", &sandbox.path(name))?;
        }
        sandbox.write_job("job.toml", job)?;
        let run = sandbox.finish(&["run", "job.toml", "--workers", workers, "-o", name]).await?;
        run.expect_code(0)?.expect_said(if name == "resumed" { &["resuming after step 3"] } else { &[] })?;
        // Where it began is no part of what is learned.
        let files = if name == "resumed" { &files[..2] } else { &files[..] };
        expect_same(&sandbox.path("1"), &sandbox.path(name), files)?;
    }
    // 2. Without an average, and with the best state kept.
    let plain = job.set("train.use_ema", false).set("train.select_best", true);
    let shared = plain.clone().set("train.shard_optimizer", true);
    for (name, job, workers) in [("plain", &plain, "1"), ("shared", &shared, "3")] {
        sandbox.write_job("job.toml", job)?;
        sandbox.finish(&["run", "job.toml", "--workers", workers, "-o", name]).await?.expect_code(0)?;
    }
    expect_same(&sandbox.path("plain"), &sandbox.path("shared"), &[WEIGHTS, "checkpoint-6.safetensors"])?;
    // 3. The average is another one than the weights, and they are what they are without one.
    let [average, own, plain] = [
        format!("1/{WEIGHTS}"),
        format!("1/{WITHOUT_EMA}"),
        "plain/diffusion_pytorch_model-last.safetensors".to_owned(),
    ]
    .map(|file| tensors(&sandbox.path(&file)));
    let (average, own) = (average?, own?);
    ensure!(average != own && own == plain?, "the average");
    let facts = metadata(&fs::read(sandbox.path(&format!("1/{WEIGHTS}")))?)?;
    ensure!(facts["ringtune"].contains("\"step\":6"), "{facts:?}");
    sandbox.expect_no_process().await
}

/// No file but the model's, and of the UNet the configuration alone.
#[tokio::test]
async fn synthetic_samples_teach_any_number_of_workers_the_same_with_and_without_a_cache() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let alone = sandbox.path("model");
    places::copy_folder(&places::toy_checkpoint(), &alone)?;
    fs::remove_file(alone.join("unet").join(WEIGHTS))?;
    let job = job("no")?
        .set("data", Table::from_iter([("synthetic_samples".to_owned(), Value::from(5))]))
        .set("train.init_from", "scratch")
        .set("train.min_timestep", 1)
        .set("train.ema_half_life", 1000.0)
        .set("train.validation_prompt", "");
    let without = job.clone().set("train.cache_latents", false).set("model.base", text(&alone));
    for (name, job, workers) in [("kept", &job, "2"), ("anew", &without, "3")] {
        sandbox.write_job("job.toml", job)?;
        sandbox.finish(&["run", "job.toml", "--workers", workers, "-o", name]).await?.expect_code(0)?;
    }
    let [kept, anew] = ["kept", "anew"].map(|name| tensors(&sandbox.path(&format!("{name}/{WEIGHTS}"))));
    // The model's hash is another one, and the weights are not.
    ensure!(kept? == anew?, "other weights");
    // What such a job needs is said before.
    let doctor = sandbox.finish(&["doctor", "job.toml"]).await?.expect_code(0)?;
    ensure!(doctor.stdout.contains("GiB a rank"), "{}", doctor.stdout);
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn a_worker_that_dies_costs_no_step_and_bf16_has_one_result_too() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = job("bf16")?.set("train.validation_prompt", "");
    sandbox.write_job("job.toml", &job)?;
    sandbox.finish(&["run", "job.toml", "-o", "whole"]).await?.expect_code(0)?;
    // Each rank has a part of the optimizer's moments, and the average.
    sandbox.write_job("job.toml", &job.set("train.shard_optimizer", true))?;
    let mut cluster = Cluster::start(&sandbox, 3).await?;
    let id = cluster.submit(&sandbox.path("job.toml")).await?;
    cluster.wait_for_step(&id, 1).await?;
    cluster.signal("worker-1", Signal::KILL)?;
    cluster.wait_for_success(&id).await?;
    cluster.result(&id, "survived").await?;
    expect_same(&sandbox.path("whole"), &sandbox.path("survived"), &[WEIGHTS, WITHOUT_EMA])?;
    Ok(())
}

/// Whose state is kept after each step.
fn replayed_job() -> Result<Job> {
    Ok(job("no")?
        .set("train.checkpointing_steps", 1)
        .set("train.validation_prompt", "")
        .set("train.validation_loss_steps", 0)
        .set("train.train_batch_size", 2)
        .set("train.adam_epsilon", 1e-6)
        .set("cluster.world_size", 2))
}

/// Each step from the reference's own state, of all of the UNet and of a part of it.
#[tokio::test]
async fn every_step_is_that_of_diffusers() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let plain = replayed_job()?;
    let (toy, other) = (text(&places::toy_checkpoint()), text(&reference::tiny_checkpoint("tiny2").await?));
    let all = plain.clone().set("train.snr_gamma", 5.0).set("train.max_grad_norm", 0.05);
    // Velocities, other numbers of heads, and a square that no latent of Stable Diffusion 1 has.
    let part = plain.set("train.trainable", "cross_attention").set("train.resolution", 36);
    replay(&sandbox, "all", all, &toy, 4).await?;
    replay(&sandbox, "part", part, &other, 4).await?;
    sandbox.expect_no_process().await
}

/// A step is a round that each microbatch's replica takes by itself.
#[tokio::test]
async fn rounds_are_those_of_adamw_and_sgd_and_any_number_of_workers_takes_the_same() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let rounds = |job: Job| job.set("train.exchange", "local").set("train.local_steps", 2);
    let toy = text(&places::toy_checkpoint());
    // Movements that are large beside the last bits of what moves.
    let replayed = rounds(replayed_job()?)
        .set("train.learning_rate", 1e-2)
        .set("train.lr_scheduler", "constant")
        .set("train.adam_epsilon", 1e-4)
        .set("train.max_grad_norm", 0.05);
    replay(&sandbox, "replayed", replayed, &toy, 3).await?;
    // Whoever computes a round; and from the middle.
    let job = rounds(job("no")?.set("train.max_train_steps", 4).set("train.checkpointing_steps", 2))
        .set("cluster.world_size", 3);
    for (name, job, workers) in [
        ("1", job.clone(), "1"),
        ("3", job.clone().set("train.offload", "disk"), "3"),
        ("resumed", job.clone().set("train.resume_from_checkpoint", "latest"), "2"),
    ] {
        if name == "resumed" {
            copy_alone(&sandbox.path("1"), "checkpoint-2.safetensors", &sandbox.path(name))?;
        }
        sandbox.write_job("job.toml", &job)?;
        sandbox.finish(&["run", "job.toml", "--workers", workers, "-o", name]).await?.expect_code(0)?;
        expect_same(&sandbox.path("1"), &sandbox.path(name), &[WEIGHTS, WITHOUT_EMA])?;
    }
    // A rank that is lost takes nothing of its round with it.
    sandbox.write_job("job.toml", &job)?;
    let mut cluster = Cluster::start(&sandbox, 3).await?;
    let id = cluster.submit(&sandbox.path("job.toml")).await?;
    cluster.wait_for_step(&id, 1).await?;
    cluster.signal("worker-1", Signal::KILL)?;
    cluster.wait_for_success(&id).await?;
    cluster.result(&id, "survived").await?;
    expect_same(&sandbox.path("1"), &sandbox.path("survived"), &[WEIGHTS, WITHOUT_EMA])?;
    Ok(())
}

/// Takes so many steps and computes all but the first again as diffusers does.
async fn replay(sandbox: &Sandbox, name: &str, job: Job, checkpoint: &str, steps: i64) -> Result<()> {
    let trace = text(&sandbox.path(&format!("{name}-trace")));
    let job = job.set("model.base", checkpoint).set("train.max_train_steps", steps);
    sandbox.write_job("job.toml", &job.set("debug.trace_dir", trace.as_str()))?;
    sandbox.finish(&["run", "job.toml", "--workers", "2", "-o", name]).await?.expect_code(0)?;
    let out = text(&sandbox.path(name));
    let replayed = reference::run_script("replay_network.py", &[&out, &trace, checkpoint]).await?;
    let seen = replayed.expect_code(0)?.json_lines()?.pop().context("what was seen")?;
    ensure!(seen["steps"] == steps - 1, "{name}: {seen}");
    Ok(())
}

/// More steps, of models of other shapes, with accumulation and late timesteps.
#[tokio::test]
async fn twenty_steps_are_those_of_diffusers() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let plain = replayed_job()?
        .set("train.gradient_accumulation_steps", 2)
        .set("train.snr_gamma", 5.0)
        .set("train.max_grad_norm", 0.05)
        .set("train.min_timestep", 1);
    for preset in ["tiny15", "tiny2"] {
        let checkpoint = text(&reference::tiny_checkpoint(preset).await?);
        replay(&sandbox, preset, plain.clone(), &checkpoint, 21).await?;
    }
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn what_was_learned_goes_into_a_pipeline_whole_or_in_part() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let toy = places::toy_checkpoint();
    let short = job("no")?.set("train.max_train_steps", 2).set("train.use_ema", false);
    let trainable = Value::Array(vec!["attn2.to_k".into(), "conv_out".into()]);
    let jobs = [
        ("whole", "generate --model", short.clone().set("train.save_as_full_pipeline", true)),
        ("part", "pipeline", short.clone().set("train.trainable", trainable)),
    ];
    for (name, next, job) in jobs {
        sandbox.write_job("job.toml", &job)?;
        let run = sandbox.finish(&["run", "job.toml", "--workers", "1", "-o", name]).await?.expect_code(0)?;
        run.expect_said(&[&format!("ringtune {next}")])?;
    }
    // 1. A whole UNet is the file itself.
    let of_pipeline = |folder: &str| sandbox.path(&format!("{folder}/unet/{WEIGHTS}"));
    ensure!(fs::read(of_pipeline("whole/pipeline"))? == fs::read(sandbox.path(&format!("whole/{WEIGHTS}")))?);
    // 2. Of a part, the rest is the model's own, as it is stored.
    let line = ["pipeline", "--model", &text(&toy), "--unet", &format!("part/{WEIGHTS}"), "-o", "made"];
    sandbox.finish(&line).await?.expect_code(0)?.expect_said(&["wrote made, a diffusers pipeline"])?;
    let (own, part) =
        (tensors(&toy.join("unet").join(WEIGHTS))?, tensors(&sandbox.path(&format!("part/{WEIGHTS}")))?);
    ensure!(
        !part.is_empty()
            && part.keys().all(|name| name.contains("attn2.to_k") || name.starts_with("conv_out"))
    );
    for (name, stored) in tensors(&of_pipeline("made"))? {
        ensure!(Some(&stored) == part.get(&name).or(own.get(&name)), "{name}");
    }
    // 3. What it draws is what the job showed, and diffusers loads it.
    let drawing =
        ["generate", "--model", "whole/pipeline", "--prompt", "a photo of a green star", "--seed", "7"];
    let same = [
        "--scheduler",
        "dpm++_2m",
        "--mixed-precision",
        "no",
        "--threads",
        "1",
        "--height",
        "64",
        "--width",
        "64",
    ];
    sandbox.write_job("job.toml", &short.set("train.validation_steps", 2))?;
    sandbox.finish(&["run", "job.toml", "--workers", "1", "-o", "shown"]).await?.expect_code(0)?;
    sandbox.finish(&[&drawing[..], &same, &["-o", "drawn.png"]].concat()).await?.expect_code(0)?;
    let [shown, drawn] = ["shown/preview-2-0.png", "drawn.png"]
        .map(|name| image::open(sandbox.path(name)).map(|picture| picture.to_rgb8()));
    ensure!(shown? == drawn?, "another picture");
    // 4. What is refused.
    let other = text(&reference::tiny_checkpoint("tiny2").await?);
    let line = ["pipeline", "--model", &other, "--unet", &format!("whole/{WEIGHTS}"), "-o", "new"];
    let refused = sandbox.finish(&line).await?;
    ensure!(
        refused.code != Some(0) && refused.stderr.contains("and the model's UNet one of"),
        "{}",
        refused.stderr
    );
    ensure!(!sandbox.path("new").exists());
    let job = job("no")?.set("train.trainable", Value::Array(vec!["attn9".into()]));
    sandbox.write_job("job.toml", &job)?;
    let refused = sandbox.finish(&["run", "job.toml", "-o", "out"]).await?;
    let said = "train.trainable: \"attn9\" is a part of no parameter's name";
    ensure!(refused.code != Some(0) && refused.stderr.contains(said), "{}", refused.stderr);
    sandbox.expect_no_process().await
}
