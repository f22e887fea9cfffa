//! What users order of jobs that run, on libtorch: whoever dies meanwhile, the job learns what it learns with the same orders
//! from its start.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::JobReason;
use ringtune_tests::{Cluster, Job, Sandbox, files::expect_same, job::text, places};

/// Steps of a job that nobody ends before.
const STEPS: i64 = 120;

struct Orders<'a> {
    cluster: Cluster<'a>,
    sandbox: &'a Sandbox,
}

impl Orders<'_> {
    async fn submit(&self, job: &Job) -> Result<String> {
        self.cluster.submit(&self.sandbox.write_job("job.toml", job)?).await
    }

    async fn order(&self, job: &str, order: &[&str]) -> Result<()> {
        self.cluster.finish(&[&["order", job], order].concat()).await?.expect_code(0).map(drop)
    }

    async fn kill(&mut self, label: &str) -> Result<()> {
        self.cluster.daemon(label)?.end().await?;
        self.cluster.start_again(label).await
    }

    /// The step that a job has come to.
    async fn step(&self, job: &str) -> Result<i64> {
        Ok(self.cluster.job(job).await?.step)
    }

    /// Runs a command that prints a job's id.
    async fn job_of(&self, command: &[&str]) -> Result<String> {
        let finished = self.cluster.finish(command).await?.expect_code(0)?;
        Ok(finished.stdout.trim().to_owned())
    }

    /// The files of a job, and of the same job with the same orders from its start: these are the same.
    async fn expect_same_from_the_start(&self, job: &str, files: &[&str], resume: &str) -> Result<PathBuf> {
        let ended = self.cluster.result(job, &format!("out-{job}")).await?;
        let again = self.job_of(&["submit", "--again", job, "--set", resume]).await?;
        let from_the_start = self.cluster.result(&again, &format!("out-{again}")).await?;
        expect_same(&ended, &from_the_start, files)?;
        Ok(ended)
    }
}

/// The names of a folder's files that begin and end so.
fn named(folder: &Path, begin: &str, end: &str) -> Result<Vec<String>> {
    let names = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<String>>>()?;
    names.retain(|name| name.starts_with(begin) && name.ends_with(end));
    Ok(names)
}

#[tokio::test]
async fn every_order_is_carried_out_once_whoever_dies() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut orders = Orders { cluster: Cluster::start(&sandbox, 2).await?, sandbox: &sandbox };
    let job =
        Job::toy()?.set("train.max_train_steps", STEPS).set("train.checkpointing_steps", 0).shared_by(2);
    let job = orders.submit(&job).await?;
    orders.cluster.wait_for_step(&job, 3).await?;
    // 1. Each is given, and then somebody dies.
    let prompt = "a photo of a <green-star>";
    let all: [(&[&str], &str); 3] = [
        (&["--learning-rate", "0.01"], "coordinator"),
        (&["--snapshot"], "worker-2"),
        (&["--prompt", prompt], "worker-1"),
    ];
    for (order, dies) in all {
        orders.order(&job, order).await?;
        orders.kill(dies).await?;
        let step = orders.step(&job).await?;
        orders.cluster.wait_for_step(&job, step + 4).await?;
    }
    let last = (orders.step(&job).await? + 10).to_string();
    orders.order(&job, &["--stop", "--after", &last]).await?;
    orders.kill("worker-2").await?;
    // 2. Each was carried out, and no step is lost.
    let ended = orders.cluster.wait_for_success(&job).await?;
    ensure!(ended.reason_code() == JobReason::StoppedByOrder, "{ended:?}");
    let settled: Vec<i64> = ended.orders.iter().filter_map(|order| order.settled_step).collect();
    ensure!(settled.len() == 4 && settled.is_sorted() && settled[3].to_string() == last, "{settled:?}");
    let steps = orders.cluster.steps(&job).await?;
    ensure!(steps.iter().map(|step| step.step).eq(1..=settled[3]), "{steps:?}");
    let rates = steps.iter().map(|step| step.learning_rate);
    ensure!(rates.eq((1..=settled[3]).map(|step| if step <= settled[0] { 0.02 } else { 0.01 })), "{steps:?}");
    // 3. From its start it comes to the same, and so does a proof.
    let nowhere = "train.resume_from_checkpoint=\"\"";
    let files = ["learned_embeds.safetensors", "README.md", "job.toml"];
    let folder = orders.expect_same_from_the_start(&job, &files, nowhere).await?;
    let kept = format!("checkpoint-{}.safetensors", settled[1]);
    ensure!(named(&folder, "checkpoint-", "")?.contains(&kept), "{kept} is not there");
    let sample = format!("sample-3-{}-", settled[2]);
    ensure!(!named(&folder, &sample, ".png")?.is_empty(), "{sample} is not there");
    orders.cluster.finish(&["verify", &job]).await?.expect_code(0).context("the proof")?;
    // 4. A fork goes on from the state with another rate, to the job's own end.
    let step = settled[1].to_string();
    let fork = ["fork", &job, "--step", &step, "--learning-rate", "0.03"];
    let fork = orders.job_of(&fork).await?;
    orders.cluster.wait_for_step(&fork, settled[1] + 2).await?;
    orders.kill("coordinator").await?;
    orders.kill("worker-1").await?;
    let forked = orders.cluster.wait_for_success(&fork).await?;
    ensure!(forked.step == STEPS, "{forked:?}");
    orders.expect_same_from_the_start(&fork, &files[..2], nowhere).await?;
    let refused = orders.cluster.finish(&["fork", &job, "--set", "train.seed=8"]).await?;
    refused.expect_code(2)?.expect_said(&["train.seed was 7, now it is 8"])?;
    let late = orders.cluster.finish(&["order", &job, "--snapshot"]).await?;
    late.expect_code(1)?.expect_said(&["has ended (succeeded)"])?;
    Ok(())
}

#[tokio::test]
async fn adapters_are_trained_on_as_they_were_ordered_to() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut orders = Orders { cluster: Cluster::start(&sandbox, 2).await?, sandbox: &sandbox };
    let job: toml::Table = toml::from_str(
        r#"
        kind = "lora"
        [model]
        [data]
        instance_prompt = "a green star"
        [train]
        resolution = 64
        train_batch_size = 1
        max_train_steps = 200
        learning_rate = 0.01
        lr_scheduler = "cosine"
        lr_warmup_steps = 0
        train_text_encoder = true
        text_encoder_learning_rate = 0.002
        seed = 7
        [lora]
        rank = 2
        [cluster]
        world_size = 2
        min_world_size = 1
        threads_per_rank = 1
        "#,
    )?;
    let job = Job::of(job)
        .set("model.base", text(&places::toy_checkpoint()))
        .set("data.images", text(&places::green_star()));
    let job = orders.submit(&job).await?;
    orders.cluster.wait_for_step(&job, 2).await?;
    orders.order(&job, &["--learning-rate", "0.03"]).await?;
    orders.kill("worker-1").await?;
    let step = orders.step(&job).await?;
    orders.cluster.wait_for_step(&job, step + 2).await?;
    orders.order(&job, &["--snapshot"]).await?;
    orders.order(&job, &["--prompt", "a green star on a beach"]).await?;
    orders.order(&job, &["--stop"]).await?;
    let nowhere = "train.resume_from_checkpoint=\"\"";
    let files = ["pytorch_lora_weights.safetensors", "README.md"];
    let folder = orders.expect_same_from_the_start(&job, &files, nowhere).await?;
    for (begin, end) in [("sample-3-", ".png"), ("pytorch_lora_weights-steps-", ".safetensors")] {
        ensure!(!named(&folder, begin, end)?.is_empty(), "{begin} is not there");
    }
    Ok(())
}
