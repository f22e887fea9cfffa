//! What a job comes to when nothing goes wrong.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::{self, JobState};
use ringtune_shared::ids::ContentHash;
use serde::{Deserialize, Serialize};

use super::{
    row::Row,
    story::{self, Story},
};
use crate::{Cluster, Job, Launch, Sandbox, daemon::COORDINATOR, job::text, places, wait::until};

/// The file that is compared.
const EMBEDDING: &str = "learned_embeds.safetensors";

/// A finished job's results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results {
    /// SHA-256 of the learned embedding's file.
    pub embedding: String,
    /// SHA-256 of the state after each step, from step 1.
    pub states: Vec<String>,
    /// The step numbers of metrics.csv.
    pub measured_steps: Vec<i64>,
    /// Those of ListSteps.
    pub listed_steps: Vec<i64>,
}

/// The job file of a row.
pub fn job(row: &Row) -> Result<Job> {
    let workers = i64::try_from(row.workers.len())?;
    let plain = Job::toy()?
        .set("name", "chaos")
        .set("train.max_train_steps", row.steps)
        .set("train.train_batch_size", 1)
        .set("cluster.world_size", workers)
        .set("cluster.min_world_size", 1);
    Ok(row.keys.iter().fold(plain, |job, (key, value)| job.set(key, value.clone())))
}

/// The results of a job that has succeeded.
pub async fn results(sandbox: &Sandbox, cluster: &Cluster<'_>, job_id: &str) -> Result<Results> {
    let output = sandbox.path("output");
    cluster.finish(&["fetch", job_id, "-o", &text(&output)]).await?.expect_code(0)?;
    let embedding = fs::read(output.join(EMBEDDING)).context(EMBEDDING)?;
    let metrics = fs::read_to_string(output.join("metrics.csv")).context("metrics.csv")?;
    let number = |line: &str| line.split(',').next().and_then(|number| number.parse().ok());
    let measured_steps = metrics.lines().skip(1).map(|line| number(line).context(line.to_owned()));
    let request = v1::ListStepsRequest { job_id: job_id.to_owned(), page_size: 10_000, ..Default::default() };
    let steps = cluster.jobs().await?.list_steps(request).await?.into_inner().steps;
    Ok(Results {
        embedding: ContentHash::of(&embedding).to_string(),
        measured_steps: measured_steps.collect::<Result<_>>()?,
        listed_steps: steps.iter().map(|step| step.step).collect(),
        states: steps.into_iter().map(|step| step.state_sha256).collect(),
    })
}

/// The results of a row's job on one worker without faults: computed once for each build and job.
pub async fn without_faults(row: &Row) -> Result<Results> {
    let sandbox = Sandbox::new()?;
    let job_file = sandbox.write_job("job.toml", &job(row)?)?;
    let kept = kept_file(row, &fs::read_to_string(&job_file)?)?;
    if let Ok(bytes) = fs::read(&kept) {
        return Ok(serde_json::from_slice(&bytes)?);
    }
    let mut cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator()).await?;
    let launch = Launch::worker("worker-1", row.program, &cluster.coordinator.grpc);
    cluster.add_worker(launch.flags(row.clean_flags.iter().map(String::as_str))).await?;
    let id = cluster.submit(&job_file).await?;
    let story = Story::follow(&cluster.coordinator.grpc, &id)?;
    let over = || std::future::ready(Ok(story.job().filter(story::has_ended)));
    let ended = until("the job ends", Duration::from_secs(row.deadline), over).await?;
    ensure!(
        ended.state() == JobState::Succeeded,
        "without faults it is {:?}: {}",
        ended.state(),
        ended.state_reason
    );
    let results = results(&sandbox, &cluster, &id).await?;
    let all: Vec<i64> = (1..=row.steps).collect();
    ensure!(results.listed_steps == all, "without faults its steps are {:?}", results.listed_steps);
    fs::create_dir_all(kept.parent().context("a folder")?)?;
    let partial = kept.with_extension(format!("{}.partial", std::process::id()));
    fs::write(&partial, serde_json::to_vec(&results)?)?;
    fs::rename(partial, kept)?;
    Ok(results)
}

/// Beside the programs; another build or another job has another file.
fn kept_file(row: &Row, job: &str) -> Result<PathBuf> {
    let mut name = format!("{job}\n{:?}\n", row.clean_flags);
    let program = places::program(row.program)?;
    for program in [&program, &places::program(COORDINATOR)?] {
        let about = fs::metadata(program)?;
        name.push_str(&format!("{program:?} {} {:?}\n", about.len(), about.modified()?));
    }
    let folder = program.parent().context("the target folder")?.join("chaos-clean");
    Ok(folder.join(format!("{}.json", ContentHash::of(name.as_bytes()))))
}
