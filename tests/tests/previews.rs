//! Pictures and TensorBoard's events while training goes on.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Job, Sandbox,
    files::{EMBEDDING, expect_same, names_in},
    job::text,
    places, reference,
};

const PROMPT: &str = "a photo of a <green-star>";

fn job(precision: &str) -> Result<Job> {
    Ok(Job::toy()?
        .shared_by(2)
        .set("train.num_vectors", 2)
        .set("train.max_train_steps", 5)
        .set("train.validation_loss_steps", 2)
        .set("train.validation_loss_samples", 4)
        .set("train.mixed_precision", precision))
}

fn with_previews(job: Job) -> Job {
    job.set("train.validation_prompt", PROMPT)
        .set("train.num_validation_images", 3)
        .set("train.validation_steps", 2)
}

/// The previews in a folder, by name.
fn previews(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let names = names_in(folder)?.into_iter().filter(|name| name.starts_with("preview-"));
    names.map(|name| Ok((name.clone(), fs::read(folder.join(name))?))).collect()
}

async fn run(sandbox: &Sandbox, job: &str, workers: &str, out: &str) -> Result<Vec<serde_json::Value>> {
    let arguments = ["run", job, "--workers", workers, "-o", out, "--output", "json"];
    sandbox.finish(&arguments).await?.expect_code(0)?.json_lines()
}

/// Runs with and without previews, on one and two workers: the same bytes but for the previews themselves.
async fn previews_change_nothing(precision: &str) -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    sandbox.write_job("plain.toml", &job(precision)?.set("train.report_to", "none"))?;
    sandbox.write_job("previews.toml", &with_previews(job(precision)?))?;
    run(&sandbox, "plain.toml", "1", "plain").await?;
    run(&sandbox, "previews.toml", "1", "one").await?;
    run(&sandbox, "previews.toml", "2", "two").await?;
    for out in ["one", "two"] {
        expect_same(&sandbox.path("plain"), &sandbox.path(out), &[EMBEDDING, "README.md"])?;
    }
    let one = previews(&sandbox.path("one"))?;
    let expected: Vec<String> =
        [2, 4, 5].iter().flat_map(|step| (0..3).map(move |k| format!("preview-{step}-{k}.png"))).collect();
    ensure!(one.keys().eq(&expected), "{:?}", one.keys());
    ensure!(one == previews(&sandbox.path("two"))?, "the previews depend on the number of workers");
    ensure!(
        one["preview-2-0.png"] != one["preview-5-0.png"] && one["preview-5-0.png"] != one["preview-5-1.png"]
    );
    let plain = sandbox.path("plain");
    ensure!(previews(&plain)?.is_empty() && !plain.join("events.out.tfevents.ringtune").exists());
    Ok(sandbox)
}

#[tokio::test]
async fn previews_are_what_generate_draws_and_tensorboard_shows_them() -> Result<()> {
    let sandbox = previews_change_nothing("no").await?;

    // 1. The time they take is apart from the step's, and each is told as it is kept.
    let events = run(&sandbox, "previews.toml", "2", "out").await?;
    let seconds: BTreeMap<i64, f64> = events
        .iter()
        .filter(|event| event["event"] == "step")
        .map(|event| Some((event["step"].as_i64()?, event["preview_seconds"].as_f64()?)))
        .collect::<Option<_>>()
        .context("every step has its preview_seconds")?;
    let drawn: Vec<i64> =
        seconds.iter().filter(|(_, seconds)| **seconds > 0.0).map(|(step, _)| *step).collect();
    ensure!(drawn == [2, 4, 5], "{seconds:?}");
    let last_step = events.iter().position(|event| event["event"] == "step" && event["step"] == 5);
    let kept =
        events.iter().position(|event| event["name"] == "preview-2-0.png" && event["event"] == "artifact");
    ensure!(
        kept.is_some() && kept < last_step,
        "the first picture was kept at {kept:?}, the last step at {last_step:?}"
    );

    // 2. The last pictures are those of the embedding.
    let (model, embeds) =
        (text(&places::toy_checkpoint()), text(&sandbox.path("out/learned_embeds.safetensors")));
    let options = "--seed 7 --scheduler dpm++_2m --steps 25 --guidance 7.5 --size 64 --count 3 --mixed-precision no --threads 1";
    let mut arguments =
        vec!["generate", "--model", &model, "--embeds", &embeds, "--prompt", PROMPT, "-o", "generated"];
    arguments.extend(options.split(' '));
    sandbox.finish(&arguments).await?.expect_code(0)?;

    // 3. TensorBoard reads the numbers of metrics.csv, and these pictures.
    let (out, generated) = (text(&sandbox.path("out")), text(&sandbox.path("generated")));
    let checked = reference::run_script("check_events.py", &[&out, "--generated", &generated]).await?;
    let checked = checked.expect_code(0)?;
    ensure!(checked.stdout.contains("\"ok\": true"), "{}", checked.stdout);
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn previews_change_no_bit_in_bf16_either() -> Result<()> {
    previews_change_nothing("bf16").await.map(drop)
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_refused_before_the_first_step() -> Result<()> {
    let sandbox = Sandbox::new()?;
    // 74 words and a token of two vectors are 76.
    let long = format!("{} <green-star>", vec!["star"; 74].join(" "));
    sandbox.write_job("job.toml", &job("no")?.set("train.validation_prompt", long))?;
    let run = sandbox.finish(&["run", "job.toml", "-o", "out"]).await?.expect_code(1)?;
    run.expect_said(&["train.validation_prompt: got 76 tokens", "allowed: at most 75"])?;
    ensure!(!sandbox.path("out/learned_embeds.safetensors").exists());
    sandbox.expect_no_process().await
}
