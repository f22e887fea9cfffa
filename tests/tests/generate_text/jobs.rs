//! Texts as a job: those of the command, for any number of workers, whatever dies.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::JobState;
use ringtune_tests::{Cluster, Job, Sandbox, job::text};
use rustix::process::Signal;
use serde_json::Value;

use crate::{objects, sandbox};

const PROMPTS: [&str; 3] = ["The old garden", "", "naïve 日本\n"];
const ALL: &str = "texts.jsonl";

/// As the tests of the command compute: one thread, in fp32.
fn job(sandbox: &Sandbox) -> Result<Job> {
    Ok(Job::texts(&sandbox.path("model"))?
        .set("generate_text.prompts", PROMPTS.to_vec())
        .set("generate_text.num_samples", 3)
        .set("generate_text.max_new_tokens", 12)
        .set("generate_text.mixed_precision", "no")
        .shared_by(3))
}

/// Runs the job on so many workers; what it left as texts, and what was said.
async fn run(sandbox: &Sandbox, workers: u32) -> Result<(Vec<u8>, String)> {
    let (number, out) = (workers.to_string(), format!("out-{workers}"));
    let run = sandbox.finish(&["run", "job.toml", "--workers", &number, "-o", &out]).await?.expect_code(0)?;
    Ok((fs::read(sandbox.path(&out).join(ALL))?, run.stderr))
}

#[tokio::test]
async fn any_number_of_workers_makes_the_texts_of_the_command() -> Result<()> {
    let sandbox = sandbox()?;
    let file = sandbox.write_job("job.toml", &job(&sandbox)?)?;
    let (one, said) = run(&sandbox, 1).await?;
    let mut cluster = Cluster::start(&sandbox, 2).await?;
    for workers in [2, 3] {
        cluster.grow(workers).await?;
        let out = cluster.complete(&file, &format!("out-{workers}")).await?;
        ensure!(fs::read(out.join(ALL))? == one, "{workers} workers make other texts");
    }
    // 1. They are those of the command, in their order.
    let lines: Vec<Value> =
        String::from_utf8(one.clone())?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(lines.len() == 9, "{} texts", lines.len());
    for (number, prompt) in PROMPTS.iter().enumerate() {
        let options =
            ["--prompt", prompt, "--num-samples", "3", "--max-new-tokens", "12", "--temperature", "1.5"];
        let theirs = objects(&sandbox, &[&options[..], &["--stop-at-end-of-text", "false"]].concat()).await?;
        for (sample, theirs) in theirs.iter().enumerate() {
            let ours = &lines[3 * number + sample];
            ensure!(ours["prompt_number"] == number && ours["prompt"] == *prompt, "{ours}");
            for key in ["sample", "text", "tokens", "prompt_tokens", "ended"] {
                ensure!(ours[key] == theirs[key], "{key}: {ours} and {theirs}");
            }
        }
    }
    // 2. Each is a file, and was said as it came.
    let each: Vec<u8> = (1..=9)
        .map(|number| fs::read(sandbox.path(&format!("out-3/text-{number:04}.json"))))
        .collect::<std::io::Result<Vec<_>>>()?
        .concat();
    ensure!(each == one, "the files are not the lines");
    ensure!(said.contains("text 2 of 9 (12 tokens):\nThe old garden"), "{said}");
    // 3. What is left beside them runs the job again.
    let again = fs::read_to_string(sandbox.path("out-3/job.toml"))?;
    ensure!(again.contains("[generate_text]") && !again.contains("variant"), "{again}");
    ensure!(sandbox.path("out-3/job.log").is_file());
    // 4. The comparison can fail: another seed makes other texts.
    let other = sandbox.write_job("other.toml", &job(&sandbox)?.set("generate_text.seed", 7))?;
    let other = cluster.complete(&other, "out-other").await?;
    ensure!(fs::read(other.join(ALL))? != one, "the seed does not matter");
    Ok(())
}

#[tokio::test]
async fn what_a_dead_worker_had_begun_another_makes() -> Result<()> {
    let sandbox = sandbox()?;
    // So many that they take a while, and longer than the model's positions, as that is slow.
    let job = job(&sandbox)?
        .set("generate_text.num_samples", 40)
        .set("generate_text.max_new_tokens", 60)
        .set("cluster.world_size", 2);
    let file = sandbox.write_job("job.toml", &job)?;
    let straight = run(&sandbox, 1).await?.0;
    let mut cluster = Cluster::start(&sandbox, 2).await?;
    let id = cluster.submit(&file).await?;
    // Texts are files as soon as they are there, and so a few are there before the others.
    cluster.wait_for_artifact(&id, "text-0002.json").await?;
    ensure!(cluster.job(&id).await?.state() == JobState::Running, "it was over before a worker died");
    cluster.signal("worker-2", Signal::KILL)?;
    ensure!(fs::read(cluster.result(&id, "out").await?.join(ALL))? == straight, "other texts");
    Ok(())
}

#[tokio::test]
async fn what_is_wrong_is_refused_before_any_work() -> Result<()> {
    let sandbox = sandbox()?;
    for (key, value, said) in [
        ("generate_text.top_p", toml::Value::from(1.5), &["generate_text.top_p: got 1.5; allowed: "][..]),
        ("generate_text.prompts", toml::Value::Array(Vec::new()), &["generate_text.prompts: got 0 prompts"]),
        ("model.base", toml::Value::from(text(&sandbox.path("nowhere"))), &["model.base", "nowhere"]),
        ("debug.trace_dir", toml::Value::from("/t"), &["debug.trace_dir: a job of kind \"generate_text\""]),
    ] {
        sandbox.write_job("job.toml", &job(&sandbox)?.set(key, value))?;
        let run = sandbox.finish(&["run", "job.toml", "-o", "out"]).await?;
        ensure!(run.code != Some(0), "{key} is accepted");
        run.expect_said(said).with_context(|| key)?;
        ensure!(!sandbox.path("out").join(ALL).exists());
    }
    // A tokenizer with more tokens than the model has.
    let config = sandbox.path("model/config.json");
    let small = fs::read_to_string(&config)?.replace("557", "200");
    fs::write(&config, small)?;
    sandbox.write_job("job.toml", &job(&sandbox)?)?;
    let run =
        tokio::time::timeout(Duration::from_secs(120), sandbox.finish(&["run", "job.toml", "-o", "out"]));
    run.await??.expect_code(1)?.expect_said(&["model.base"])?;
    // A dry run shows what there is to make.
    fs::write(&config, fs::read_to_string(&config)?.replace("200", "557"))?;
    let shown = sandbox.finish(&["doctor", "job.toml"]).await?;
    ensure!(shown.stdout.contains("9 texts of at most 12 tokens"), "{} {}", shown.stdout, shown.stderr);
    Ok(())
}
