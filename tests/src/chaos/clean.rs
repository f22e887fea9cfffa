//! Results of a job without faults.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::{
    self, JobState, artifact_service_client::ArtifactServiceClient, job_service_client::JobServiceClient,
};
use ringtune_shared::ids::ContentHash;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{
    row::{Learns, Row},
    story::{self, Story},
};
use crate::{
    Cluster, Door, Job, Launch, Sandbox,
    daemon::COORDINATOR,
    job::text,
    places,
    process::finish,
    wait::{SOON, until},
};

/// Options that only a textual inversion has.
const WORDS: [&str; 4] =
    ["train.placeholder_token", "train.initializer_token", "train.templates", "train.num_vectors"];
/// Prefix of checkpoints' names.
const CHECKPOINT: &str = "checkpoint-";

/// Files with results that this process wrote.
static WRITERS: AtomicU32 = AtomicU32::new(0);

/// A finished job's results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results {
    /// SHA-256 of what was learned.
    pub learned: String,
    /// SHA-256 of the state after each step, from step 1.
    pub states: Vec<String>,
    /// The step numbers of metrics.csv.
    pub measured_steps: Vec<i64>,
    /// The step numbers of ListSteps.
    pub listed_steps: Vec<i64>,
    /// SHA-256 of each checkpoint that is listed, by its name.
    pub checkpoints: BTreeMap<String, String>,
}

/// The job file of a row. A LoRA's learns a word too.
pub fn job(row: &Row) -> Result<Job> {
    let workers = i64::try_from(row.workers.len())?;
    let plain = Job::toy()?
        .set("name", "chaos")
        .set("train.max_train_steps", row.steps)
        .set("train.train_batch_size", 1)
        .shared_by(workers);
    let whole = row.keys.iter().fold(plain, |job, (key, value)| job.set(key, value.clone()));
    if row.learns == Learns::Word {
        return Ok(whole);
    }
    let is_large = row.keys.iter().any(|(key, _)| *key == "train.num_vectors");
    let plain = WORDS.iter().fold(whole, |job, key| job.without(key)).set("data", Table::new());
    let images = text(&places::green_star());
    if row.learns == Learns::Unet {
        let plain = plain.set("data.images", images.as_str()).set("data.instance_prompt", "a green star");
        return Ok(plain.set("kind", "unet_finetune").set("train.use_ema", true));
    }
    let word = [("placeholder_token", "<green-star>"), ("initializer_token", "star"), ("images", &images)];
    let concept: Table = word.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    // About as large as the rows are, of layers as wide.
    let plain = if is_large { plain.set("lora.rank", 8) } else { plain };
    Ok(plain.set("kind", "lora").set("concepts", Value::Array(vec![concept.into()])))
}

/// The results of a job that has succeeded, from a coordinator that may be away for a while.
pub async fn results(sandbox: &Sandbox, row: &Row, coordinator: &Door, job_id: &str) -> Result<Results> {
    let output = sandbox.path(&format!("output-{job_id}"));
    let mut fetch = sandbox.ringtune(&["fetch", job_id, "-o", &text(&output)])?;
    finish(fetch.envs(coordinator.variables())).await?.expect_code(0)?;
    let files: &[&str] = match row.learns {
        Learns::Word => &["learned_embeds.safetensors"],
        Learns::Lora => &["learned_embeds.safetensors", "pytorch_lora_weights.safetensors"],
        Learns::Unet => {
            &["diffusion_pytorch_model.safetensors", "diffusion_pytorch_model-without-ema.safetensors"]
        }
    };
    let read = |file: &&str| fs::read(output.join(file)).context(file.to_string());
    let learned = files.iter().map(read).collect::<Result<Vec<_>>>()?.concat();
    let metrics = fs::read_to_string(output.join("metrics.csv")).context("metrics.csv")?;
    let number = |line: &str| line.split(',').next().and_then(|number| number.parse().ok());
    let measured_steps = metrics.lines().skip(1).map(|line| number(line).context(line.to_owned()));
    let steps = steps(coordinator, job_id).await?;
    Ok(Results {
        learned: ContentHash::of(&learned).to_string(),
        measured_steps: measured_steps.collect::<Result<_>>()?,
        listed_steps: steps.iter().map(|step| step.step).collect(),
        states: steps.into_iter().map(|step| step.state_sha256).collect(),
        checkpoints: checkpoints(coordinator, job_id, &output).await?,
    })
}

/// The checkpoints that a job lists, each as it was fetched, by their names.
async fn checkpoints(coordinator: &Door, job_id: &str, output: &Path) -> Result<BTreeMap<String, String>> {
    let request = v1::ListArtifactsRequest { job_id: job_id.to_owned(), ..Default::default() };
    let listed = || async {
        let mut client = ArtifactServiceClient::new(coordinator.channel()?);
        Ok(client.list_artifacts(request.clone()).await.ok())
    };
    let listed = until("the coordinator lists the files", SOON, listed).await?.into_inner().artifacts;
    let mut found = BTreeMap::new();
    for artifact in listed.into_iter().filter(|artifact| artifact.name.starts_with(CHECKPOINT)) {
        let bytes = fs::read(output.join(&artifact.name)).with_context(|| artifact.name.clone())?;
        let hash = ContentHash::of(&bytes).to_string();
        ensure!(hash == artifact.sha256, "{} is not what its name was given to", artifact.name);
        found.insert(artifact.name, hash);
    }
    Ok(found)
}

/// All stored steps of a job, from a coordinator that may be away for a while.
pub async fn steps(coordinator: &Door, job_id: &str) -> Result<Vec<v1::StepReport>> {
    let (mut steps, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListStepsRequest {
            job_id: job_id.to_owned(),
            page_size: 10_000,
            page_token: page_token.clone(),
            ..Default::default()
        };
        let asked = || async {
            let mut client = JobServiceClient::new(coordinator.channel()?);
            Ok(client.list_steps(request.clone()).await.ok())
        };
        let page = until("the coordinator lists the steps", SOON, asked).await?.into_inner();
        steps.extend(page.steps);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return Ok(steps);
        }
    }
}

/// The hashes of the state after the first `count` steps of a row's job, made on one worker without faults.
pub async fn first_states(row: &Row, count: usize) -> Result<Vec<String>> {
    let sandbox = Sandbox::new()?;
    let job_file = sandbox.write_job("job.toml", &job(row)?)?;
    let cluster = one_worker(&sandbox, row).await?;
    let id = cluster.submit(&job_file).await?;
    let story = Story::follow(&cluster.coordinator.door(), &id)?;
    let wanted = i64::try_from(count)?;
    let there = || std::future::ready(Ok((story.step() >= wanted).then_some(())));
    until("the steps are made", Duration::from_secs(3_600), there).await?;
    let steps = steps(&cluster.coordinator.door(), &id).await?;
    Ok(steps.into_iter().take(count).map(|step| step.state_sha256).collect())
}

async fn one_worker<'a>(sandbox: &'a Sandbox, row: &Row) -> Result<Cluster<'a>> {
    let mut cluster = Cluster::start_coordinator(sandbox, Launch::coordinator()).await?;
    let launch = Launch::worker("worker-1", row.program, &cluster.coordinator.grpc);
    cluster.add_worker(launch.flags(row.clean_flags.iter().map(String::as_str))).await?;
    Ok(cluster)
}

/// The results of a row's job on one worker without faults: computed once for each build and job.
pub async fn without_faults(row: &Row) -> Result<Results> {
    let sandbox = Sandbox::new()?;
    let job_file = sandbox.write_job("job.toml", &job(row)?)?;
    let kept = kept_file(row, &fs::read_to_string(&job_file)?)?;
    if let Ok(bytes) = fs::read(&kept)
        && let Ok(results) = serde_json::from_slice(&bytes)
    {
        return Ok(results);
    }
    let cluster = one_worker(&sandbox, row).await?;
    let id = cluster.submit(&job_file).await?;
    let story = Story::follow(&cluster.coordinator.door(), &id)?;
    let over = || std::future::ready(Ok(story.job().filter(story::has_ended)));
    let ended = until("the job ends", Duration::from_secs(row.deadline), over).await?;
    ensure!(
        ended.state() == JobState::Succeeded,
        "without faults it is {:?}: {}",
        ended.state(),
        ended.state_reason
    );
    let results = results(&sandbox, row, &cluster.coordinator.door(), &id).await?;
    let all: Vec<i64> = (1..=row.steps).collect();
    ensure!(results.listed_steps == all, "without faults its steps are {:?}", results.listed_steps);
    fs::create_dir_all(kept.parent().context("a folder")?)?;
    // Rows beside each other may have the same job.
    let writer = WRITERS.fetch_add(1, Ordering::Relaxed);
    let partial = kept.with_extension(format!("{}-{writer}.partial", std::process::id()));
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
