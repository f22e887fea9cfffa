//! The validation loss, the embedding that is chosen by it, and the early stop.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Job, Sandbox,
    files::{EMBEDDING, copy_alone, expect_same, metadata},
};
use safetensors::SafeTensors;

/// Learns far too fast, so that the loss soon rises again; its global batch can be shared by up to three workers.
fn overshooting() -> Result<Job> {
    Ok(Job::toy()?
        .shared_by(3)
        .set("train.max_train_steps", 40)
        .set("train.learning_rate", 5.0)
        .set("train.validation_loss_steps", 2)
        // Two held-out microbatches: a ring of three has a rank without one.
        .set("train.validation_loss_samples", 4)
        .set("train.select_best", true)
        .set("train.early_stop_patience", 2)
        .set("train.save_steps", 2))
}

const RESULTS: [&str; 3] = [EMBEDDING, "learned_embeds-last.safetensors", "README.md"];

/// The numbers of metrics.csv that do not depend on the clock: step, loss, validation loss.
fn losses(csv: &str) -> Vec<[String; 3]> {
    let lines = csv.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    lines.map(|fields| [fields[0].clone(), fields[1].clone(), fields[7].clone()]).collect()
}

fn rows(file: &std::path::Path) -> Result<Vec<u8>> {
    let bytes = fs::read(file)?;
    Ok(SafeTensors::deserialize(&bytes)?.tensor("<green-star>")?.data().to_vec())
}

#[tokio::test]
async fn the_best_embedding_is_kept_and_the_job_stops_early_for_any_number_of_workers() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.write_job("job.toml", &overshooting()?)?;
    let mut all = Vec::new();
    for workers in ["1", "2", "3"] {
        let out = format!("out-{workers}");
        let arguments = ["run", "job.toml", "--workers", workers, "-o", &out, "--output", "json"];
        let run = sandbox.finish(&arguments).await?.expect_code(0)?;
        let last = run.json_lines()?.into_iter().rfind(|line| line["event"] == "state_change");
        let reason = last.context("a state")?["reason"].as_str().unwrap_or_default().to_owned();
        ensure!(reason.contains("stopped early, no lower validation loss in 2 validations"), "{reason}");
        all.push((sandbox.path(&out), fs::read_to_string(sandbox.path(&out).join("metrics.csv"))?));
    }

    // 1. The same losses, the same decision, the same bytes.
    let (first, csv) = &all[0];
    for (out, other) in &all[1..] {
        ensure!(losses(csv) == losses(other), "{:?}\n{:?}", losses(csv), losses(other));
        expect_same(first, out, &RESULTS)?;
    }

    // 2. Every other step has a validation loss; the lowest is four steps before the end.
    let losses = losses(csv);
    let last: usize = losses.len();
    ensure!(last < 40 && last.is_multiple_of(2), "{last} steps");
    let validations: Vec<(u64, f32)> = losses
        .iter()
        .filter(|[_, _, validation]| !validation.is_empty())
        .map(|[step, _, validation]| Ok((step.parse()?, validation.parse()?)))
        .collect::<Result<_>>()?;
    ensure!(validations.len() == last / 2, "{validations:?}");
    let (step, loss) = validations.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).context("one")?;
    ensure!(step as usize + 4 == last, "{validations:?}");

    // 3. The job's embedding is that step's, and says so; the last one stays beside it.
    let best = metadata(&fs::read(first.join(EMBEDDING))?)?;
    ensure!(best["ringtune.step"] == step.to_string(), "{best:?}");
    ensure!(best["ringtune.validation_loss"] == loss.to_string(), "{best:?}");
    let at_step = format!("learned_embeds-steps-{step}.safetensors");
    ensure!(rows(&first.join(EMBEDDING))? == rows(&first.join(at_step))?);
    let end = metadata(&fs::read(first.join("learned_embeds-last.safetensors"))?)?;
    ensure!(end["ringtune.step"] == last.to_string(), "{end:?}");
    ensure!(rows(&first.join("learned_embeds-last.safetensors"))? != rows(&first.join(EMBEDDING))?);
    let card = fs::read_to_string(first.join("README.md"))?;
    ensure!(card.contains(&format!("after step {step} of 40, with a loss of {loss}")), "{card}");
    sandbox.expect_no_process().await
}

/// The lowest loss so far and the validations since are part of the state: in the middle of waiting for a lower one, too.
#[tokio::test]
async fn a_resumed_job_chooses_the_same_embedding_and_stops_at_the_same_step() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = overshooting()?.set("train.checkpointing_steps", 2);
    sandbox.write_job("job.toml", &job)?;
    sandbox.write_job("resume.toml", &job.set("train.resume_from_checkpoint", "latest"))?;
    sandbox.finish(&["run", "job.toml", "--workers", "3", "-o", "straight"]).await?.expect_code(0)?;
    let straight = sandbox.path("straight");
    let csv = fs::read_to_string(straight.join("metrics.csv"))?;
    let all = losses(&csv);
    // The lowest loss is four steps before the end: after it, one validation later, and where nothing is left but the
    // results.
    for (step, workers) in [(all.len() - 4, "2"), (all.len() - 2, "1"), (all.len(), "2")] {
        let (out, checkpoint) = (format!("from-{step}"), format!("checkpoint-{step}.safetensors"));
        let folder = sandbox.path(&out);
        copy_alone(&straight, &checkpoint, &folder)?;
        let run = sandbox.finish(&["run", "resume.toml", "--workers", workers, "-o", &out]).await?;
        let resuming = format!("resuming after step {step}");
        run.expect_code(0)?.expect_said(&[resuming.as_str()])?;
        let csv = fs::read_to_string(folder.join("metrics.csv"))?;
        ensure!(losses(&csv) == all[step..], "{:?}\n{all:?}", losses(&csv));
        expect_same(&straight, &folder, &RESULTS)?;
    }
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn judging_a_job_does_not_change_what_it_learns() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = Job::toy()?.set("train.mixed_precision", "bf16");
    sandbox.write_job("plain.toml", &job)?;
    sandbox.write_job("judged.toml", &job.set("train.validation_loss_steps", 1))?;
    let mut learned = Vec::new();
    for name in ["plain", "judged"] {
        sandbox.finish(&["run", &format!("{name}.toml"), "-o", name]).await?.expect_code(0)?;
        learned.push(rows(&sandbox.path(name).join(EMBEDDING))?);
    }
    ensure!(learned[0] == learned[1], "a validation loss changes the embedding");
    Ok(())
}
