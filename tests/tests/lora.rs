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

/// Shape and bytes of a tensor.
type Stored = (Vec<usize>, Vec<u8>);

/// The tensors of a file by their names.
fn tensors(path: &Path) -> Result<BTreeMap<String, Stored>> {
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
    // 1. Who learns next to nothing has what it went on from, whichever file that is.
    let stays = job.clone().set("train.learning_rate", 1e-30);
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
    let (picture, of) = (text(&sandbox.path("command.png")), text(&sandbox.path(&weighted)));
    reference::run_script("check_pictures.py", &[&checkpoint, &picture, "--lora", &of])
        .await?
        .expect_code(0)?;
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
async fn the_best_adapters_are_drawn_at_the_end_and_the_last_ones_stay() -> Result<()> {
    let sandbox = Sandbox::new()?;
    // After two steps it learns far too fast, so that the loss rises.
    let plain = ["train.learning_rate", "train.lr_scheduler", "train.lr_warmup_steps"]
        .into_iter()
        .fold(job(&sandbox, "no")?, |job, key| job.without(key))
        .set("train.learning_rates", "1e-4:2, 1:100")
        .set("train.validation_loss_steps", 2);
    let job = plain.clone().set("train.validation_steps", 2).set("train.select_best", true);
    for (name, job) in [("plain", &plain), ("best", &job)] {
        sandbox.write_job("job.toml", job)?;
        sandbox.finish(&["run", "job.toml", "--workers", "2", "-o", name]).await?.expect_code(0)?;
    }
    let folder = sandbox.path("best");
    let best = metadata(&fs::read(folder.join(RESULTS[0]))?)?;
    let facts: serde_json::Value = serde_json::from_str(&best["ringtune"])?;
    let step = facts["step"].as_u64().unwrap_or_default();
    ensure!(step == 2, "{facts}");
    let picture = |name: String| fs::read(folder.join(name));
    for number in 0..2 {
        let of_best = picture(format!("preview-best-{number}.png"))?;
        ensure!(of_best == picture(format!("preview-{step}-{number}.png"))?, "{number}");
        ensure!(of_best != picture(format!("preview-6-{number}.png"))?, "{number}");
    }
    let last = tensors(&sandbox.path("best/pytorch_lora_weights-last.safetensors"))?;
    ensure!(last == tensors(&sandbox.path("plain").join(RESULTS[0]))?);
    Ok(())
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
    let masked = |folder: &str| job.clone().set("data.masks", format!("./{folder}"));
    for (folder, names) in
        [("few", &["0.png"][..]), ("small", &["0.png", "1.png", "2.png", "3.png", "4.png"])]
    {
        fs::create_dir_all(sandbox.path(folder))?;
        for name in names {
            let (width, height) = match folder {
                "few" => image::image_dimensions(sandbox.path(&format!("pictures/{name}")))?,
                _ => (8, 8),
            };
            image::GrayImage::new(width, height).save(sandbox.path(&format!("{folder}/{name}")))?;
        }
    }
    let targets = |target: &str| job.clone().set("lora.targets", Value::Array(vec![target.into()]));
    for (job, said) in [
        (targets("attn3.to_q"), "lora.targets: \"attn3.to_q\" is the end of no layer's name"),
        (job.clone().set("lora.rank", 1000), "lora.rank: 1000 is more than "),
        (without, "a.png: it has no caption"),
        (masked("few"), "data.masks: no file there is called 1, the mask of 1.png"),
        (masked("small"), "data.masks: 0.png has 8 x 8 pixels, and its picture 0.png has "),
        (
            job.clone().set("data.alpha_mask", true),
            "data.alpha_mask: got true, and no picture has any transparency",
        ),
    ] {
        sandbox.write_job("job.toml", &job)?;
        let refused = sandbox.finish(&["run", "job.toml", "-o", "out"]).await?;
        ensure!(refused.code != Some(0) && refused.stderr.contains(said), "{said}: {}", refused.stderr);
    }
    sandbox.expect_no_process().await
}

/// A job with much of what a step may have.
fn replayed_job(sandbox: &Sandbox) -> Result<Job> {
    Ok(job(sandbox, "no")?
        .set("train.checkpointing_steps", 1)
        .set("train.validation_prompt", "")
        .set("train.validation_loss_steps", 0)
        .set("train.save_steps", 0)
        .set("train.snr_gamma", 5.0)
        .set("train.use_ema", true)
        .set("train.input_perturbation", 0.1)
        .set("train.train_text_encoder", true)
        .set("train.text_encoder_learning_rate", 0.002))
}

/// With dropout, convolutions and an alpha of its own.
fn dropping(job: Job) -> Job {
    let alpha = Value::Table([("mid_block".to_owned(), Value::Float(0.5))].into_iter().collect());
    job.set("lora.conv_rank", 2)
        .set("lora.dropout", 0.25)
        .set("lora.rank_dropout", 0.25)
        .set("lora.alpha_pattern", alpha)
}

/// With DoRA beside all layers.
fn lengths(job: Job) -> Job {
    job.set("lora.targets", "all").set("lora.use_dora", true)
}

/// With a word of two rows, learned from the same pictures.
fn words(job: Job) -> Result<Job> {
    let concept: Table = toml::from_str(
        r#"
        placeholder_token = "<thing>"
        initializer_token = "star"
        num_vectors = 2
        images = "./pictures"
        templates = ["a {}", "{}, [caption]"]
        "#,
    )?;
    let job = job.set("data", Table::new()).set("concepts", Value::Array(vec![concept.into()]));
    Ok(job
        .set("train.train_text_encoder", false)
        .set("train.embedding_learning_rate", 0.005)
        .without("train.text_encoder_learning_rate"))
}

/// With masks that hide the right half, and a class of which one picture is there.
fn class_and_masks(sandbox: &Sandbox, job: Job) -> Result<Job> {
    for folder in ["masks", "others"] {
        fs::create_dir_all(sandbox.path(folder))?;
    }
    for entry in fs::read_dir(sandbox.path("pictures"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "png") {
            let (width, height) = image::image_dimensions(&path)?;
            let half = |x: u32, _| image::Luma([if x < width / 2 { 255 } else { 0 }]);
            let name = path.file_name().context("a name")?.to_string_lossy().into_owned();
            image::GrayImage::from_fn(width, height, half).save(sandbox.path(&format!("masks/{name}")))?;
        }
    }
    fs::copy(sandbox.path("pictures/0.png"), sandbox.path("others/mine.png"))?;
    Ok(job
        .set("data.masks", "./masks")
        .set("data.class_images", "./others")
        .set("data.class_prompt", "a star")
        .set("train.num_class_images", 3)
        .set("train.prior_loss_weight", 0.5)
        .set("train.random_flip", true))
}

/// Runs a job of so many steps on two workers, and takes each step but the first again in diffusers and PEFT.
async fn replay(sandbox: &Sandbox, name: &str, job: Job, checkpoint: &str, steps: i64) -> Result<()> {
    let trace = text(&sandbox.path(&format!("{name}-trace")));
    let file = format!("{name}.toml");
    let job = job.set("model.base", checkpoint).set("train.max_train_steps", steps);
    sandbox.write_job(&file, &job.set("debug.trace_dir", trace.as_str()))?;
    sandbox.finish(&["run", &file, "--workers", "2", "-o", name]).await?.expect_code(0)?;
    let out = text(&sandbox.path(name));
    let replayed =
        reference::run_script("replay_network.py", &[&out, &trace, checkpoint]).await?.expect_code(0)?;
    let seen = replayed.json_lines()?.pop().context("what was seen")?;
    ensure!(seen["steps"] == steps - 1, "{name}: {seen}");
    Ok(())
}

/// Steps of jobs with all that a step may have.
#[tokio::test]
async fn every_step_is_that_of_diffusers_and_peft() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = || replayed_job(&sandbox);
    let toy = text(&places::toy_checkpoint());
    replay(&sandbox, "dropping", dropping(job()?), &toy, 6).await?;
    replay(&sandbox, "words", words(job()?)?, &toy, 4).await?;
    // Velocities, other numbers of heads, and a square that no latent of Stable Diffusion 1 has. Its gradients are smaller: what is
    // far below the largest would move by its rounding alone without a larger epsilon.
    let other = text(&reference::tiny_checkpoint("tiny2").await?);
    replay(
        &sandbox,
        "lengths",
        lengths(job()?).set("train.resolution", 36).set("train.adam_epsilon", 1e-5),
        &other,
        4,
    )
    .await?;
    sandbox.expect_no_process().await
}

/// Those of the class are drawn where there are too few, once.
#[tokio::test]
async fn a_class_and_masks_count_in_every_step() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let toy = text(&places::toy_checkpoint());
    let job = class_and_masks(&sandbox, replayed_job(&sandbox)?)?;
    replay(&sandbox, "class", job.clone(), &toy, 4).await?;
    let trace = sandbox.path("class-trace/step-000002-mb-0000.safetensors");
    let inputs = tensors(&trace)?;
    let floats = |name: &str| -> Result<Vec<f32>> {
        let (_, bytes) = inputs.get(name).with_context(|| name.to_owned())?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    };
    ensure!(floats("sample_weights")? == [2.0, 1.0], "{:?}", floats("sample_weights")?);
    let mask = floats("loss_mask")?;
    let (own, of_class) = mask.split_at(mask.len() / 2);
    ensure!(own.iter().any(|weight| *weight < 0.1) && own.iter().any(|weight| *weight > 0.9), "{own:?}");
    ensure!(of_class.iter().all(|weight| *weight == 1.0), "{of_class:?}");
    let names = || -> Result<Vec<String>> {
        let entries = fs::read_dir(sandbox.path("others"))?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = names.collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    };
    let drawn = names()?;
    ensure!(drawn == ["class-7-0001.png", "class-7-0002.png", "mine.png"], "{drawn:?}");
    // Another number of workers learns the same, and draws nothing.
    sandbox.write_job("again.toml", &job.set("train.max_train_steps", 4))?;
    let again =
        sandbox.finish(&["run", "again.toml", "--workers", "1", "-o", "again"]).await?.expect_code(0)?;
    ensure!(!again.stderr.contains("drawing"), "{}", again.stderr);
    ensure!(names()? == drawn, "{:?}", names()?);
    let learned = ["class", "again"].map(|out| sandbox.path(&format!("{out}/{}", RESULTS[0])));
    ensure!(
        tensors(&learned[0])? == tensors(&learned[1])?,
        "another number of workers learns something else"
    );
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn a_word_is_learned_beside_adapters_and_drawn_with_them() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = words(job(&sandbox, "no")?)?.set("train.validation_prompt", "a <thing>");
    sandbox.write_job("job.toml", &job)?;
    let files = [RESULTS[0], RESULTS[1], RESULTS[2], "learned_embeds.safetensors", "preview-6-0.png"];
    for workers in ["1", "2"] {
        sandbox.finish(&["run", "job.toml", "--workers", workers, "-o", workers]).await?.expect_code(0)?;
        expect_same(&sandbox.path("1"), &sandbox.path(workers), &files)?;
    }
    // What it shows while it learns is what both files draw.
    let checkpoint = text(&places::toy_checkpoint());
    let drawing = [
        "generate",
        "--model",
        &checkpoint,
        "--prompt",
        "a <thing>",
        "--seed",
        "7",
        "--scheduler",
        "dpm++_2m",
    ];
    let with = ["--embeds", "1/learned_embeds.safetensors", "--lora", "1/pytorch_lora_weights.safetensors"];
    let same =
        ["--mixed-precision", "no", "--threads", "1", "--height", "64", "--width", "64", "-o", "drawn.png"];
    sandbox.finish(&[&drawing[..], &with, &same].concat()).await?.expect_code(0)?;
    let [shown, drawn] = ["1/preview-6-0.png", "drawn.png"]
        .map(|name| image::open(sandbox.path(name)).map(|picture| picture.to_rgb8()));
    let (shown, drawn) = (shown?, drawn?);
    // The up factor is multiplied by alpha / rank here before it is rounded, and there afterwards.
    let far = shown.as_raw().iter().zip(drawn.as_raw()).map(|(one, other)| one.abs_diff(*other)).max();
    ensure!(far.is_some_and(|far| far <= 1), "{far:?}");
    sandbox.expect_no_process().await
}

/// More steps, of models of other shapes.
#[tokio::test]
async fn twenty_steps_are_those_of_diffusers_and_peft() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = || replayed_job(&sandbox);
    for preset in ["tiny15", "tiny2"] {
        let model = text(&reference::tiny_checkpoint(preset).await?);
        for (name, job) in
            [("dropping", dropping(job()?)), ("lengths", lengths(job()?)), ("words", words(job()?)?)]
        {
            let job = job.set("train.adam_epsilon", 1e-6);
            replay(&sandbox, &format!("{preset}-{name}"), job, &model, 21).await?;
        }
    }
    sandbox.expect_no_process().await
}
