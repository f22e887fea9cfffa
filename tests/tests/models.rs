//! Models from hubs and buckets, in whole jobs.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Bucket, Cluster, Job, Launch, Sandbox,
    cluster::start_worker_with,
    daemon::FAKE_WORKER,
    files::{EMBEDDING, expect_same, metadata},
    hub::{COMMIT, Hub, REPOSITORY, fill_cache},
    job::text,
    metadata::{Metadata, ROLE},
    places,
    process::finish,
};
use tokio::process::Command;

const TOKEN: &str = "hf_abcdefghijklmnop";

fn two_ranks() -> Result<Job> {
    Ok(Job::toy()?.set("cluster.world_size", 2).set("train.max_train_steps", 2))
}

/// The metadata and the data of a run's embedding.
fn embedding(out: &Path) -> Result<(BTreeMap<String, String>, Vec<u8>)> {
    let bytes = fs::read(out.join(EMBEDDING))?;
    let tensors = safetensors::SafeTensors::deserialize(&bytes)?;
    Ok((metadata(&bytes)?, tensors.tensor("<green-star>")?.data().to_vec()))
}

#[tokio::test]
async fn a_model_of_a_hub_or_a_bucket_gives_what_its_folder_gives() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let checkpoint = places::toy_checkpoint();
    sandbox.write_job("folder.toml", &two_ranks()?)?;
    sandbox.finish(&["run", "folder.toml", "-o", "folder"]).await?.expect_code(0)?;
    let (facts, learned) = embedding(&sandbox.path("folder"))?;

    // 1. From a hub, by both workers, which share a cache: every file is sent once.
    let hub = Hub::start(&checkpoint, TOKEN).await?;
    let job = two_ranks()?.set("model.base", format!("hf://{REPOSITORY}@main"));
    let job = job.set("train.save_as_full_pipeline", true);
    sandbox.write_job("hub.toml", &job)?;
    let from_hub = |out: &str, variables: &[(&str, &str)]| -> Result<Command> {
        let mut command = sandbox.ringtune(&["run", "hub.toml", "-o", out])?;
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", sandbox.path("hf"));
        command.env("HF_HUB_OFFLINE", "0").envs(variables.iter().copied());
        Ok(command)
    };
    let refused = finish(&mut from_hub("refused", &[("HF_TOKEN", "hf_wrong")])?).await?;
    let refused = refused.expect_code(1)?.expect_said(&["model.base", "does not accept the token"])?;
    ensure!(!refused.stderr.contains("hf_wrong"), "the token was said:\n{}", refused.stderr);
    let run = finish(&mut from_hub("hub", &[("HF_TOKEN", TOKEN)])?).await?.expect_code(0)?;
    ensure!(!run.stderr.contains(TOKEN), "the token was said:\n{}", run.stderr);
    let mut sent = hub.sent();
    sent.sort();
    let all: Vec<String> = ringtune_tests::hub::files_below(&checkpoint)?.into_keys().collect();
    ensure!(sent == all, "sent were {sent:?}");
    let (hub_facts, hub_learned) = embedding(&sandbox.path("hub"))?;
    ensure!(hub_learned == learned, "another embedding was learned");
    ensure!(hub_facts["ringtune.model_hash"] == facts["ringtune.model_hash"], "{hub_facts:?}");
    ensure!(hub_facts["ringtune.base_model"] == format!("{REPOSITORY}@{COMMIT}"), "{hub_facts:?}");
    let card = fs::read_to_string(sandbox.path("hub/README.md"))?;
    ensure!(card.contains(&format!("base_model: \"{REPOSITORY}\"")), "{card}");

    // 2. Without the hub: what was fetched is enough, to generate too.
    let offline = [("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:9")];
    finish(&mut from_hub("offline", &offline)?).await?.expect_code(0)?;
    expect_same(&sandbox.path("hub"), &sandbox.path("offline"), &[EMBEDDING])?;
    let model = format!("hf://{REPOSITORY}");
    let picture = ["generate", "--model", &model, "--prompt", "a star", "--steps", "1", "-o", "star.png"];
    let mut generate = sandbox.ringtune(&picture)?;
    generate.env("HF_HOME", sandbox.path("hf")).envs(offline);
    finish(&mut generate).await?.expect_code(0)?.expect_said(&[COMMIT])?;
    ensure!(hub.sent().len() == all.len(), "something was sent again");
    // The pipeline that the job left holds what the hub has, and the word.
    let prompt = "a <green-star>";
    let word = ["generate", "--model", "hub/pipeline", "--prompt", prompt, "--steps", "1", "-o", "word.png"];
    sandbox.finish(&word).await?.expect_code(0)?;
    let embeds = "hub/learned_embeds.safetensors";
    let beside = ["generate", "--model", &model, "--embeds", embeds, "--prompt", prompt, "--steps", "1"];
    let mut beside = sandbox.ringtune(&[&beside[..], &["-o", "beside.png"]].concat())?;
    beside.env("HF_HOME", sandbox.path("hf")).envs(offline);
    finish(&mut beside).await?.expect_code(0)?;
    let pixels = |name: &str| Ok::<_, anyhow::Error>(image::open(sandbox.path(name))?.to_rgb8());
    ensure!(pixels("word.png")? == pixels("beside.png")?, "the pipeline draws another picture");

    // 3. From a bucket.
    let bucket = Bucket::serve(&checkpoint, "sd/toy").await?;
    sandbox.write_job("bucket.toml", &two_ranks()?.set("model.base", "s3://models/sd/toy"))?;
    let from_bucket = |out: &str| -> Result<Command> {
        let mut command = sandbox.ringtune(&["run", "bucket.toml", "-o", out])?;
        command.envs(bucket.variables()).env("XDG_CACHE_HOME", sandbox.path("cache"));
        Ok(command)
    };
    let run = finish(&mut from_bucket("bucket")?).await?.expect_code(0)?;
    ensure!(!run.stderr.contains(Bucket::SECRET), "the key was said:\n{}", run.stderr);
    let (bucket_facts, bucket_learned) = embedding(&sandbox.path("bucket"))?;
    ensure!(bucket_learned == learned && bucket_facts == facts, "{bucket_facts:?}");
    let cached = fs::read_dir(sandbox.path("cache/ringtune/models"))?.count();
    ensure!(cached == 3, "{cached} entries are in the cache instead of a folder, its lock and its mark");
    sandbox.write_job("bucket.toml", &two_ranks()?.set("model.base", "s3://models/sd/none"))?;
    let nothing = finish(&mut from_bucket("nothing")?).await?.expect_code(1)?;
    nothing.expect_said(&["model.base", "s3://models/sd/none", "nothing under this prefix"])?;
    Ok(())
}

#[tokio::test]
async fn ranks_whose_weights_differ_under_one_revision_do_not_train_together() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut cluster = Cluster::start(&sandbox, 0).await?;
    for (label, change) in [("one", 0), ("other", 1)] {
        let home = sandbox.path(&format!("hf-{label}"));
        fill_cache(&home, change)?;
        let variables = [("HF_HOME", text(&home)), ("HF_HUB_OFFLINE", "1".to_owned())];
        let worker = start_worker_with(&sandbox, label, &cluster.coordinator.grpc, &variables).await?;
        cluster.workers.push(worker);
    }
    let job = two_ranks()?.set("model.base", format!("hf://{REPOSITORY}"));
    let id = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    let ended = cluster.wait_for_end(&id).await?;
    ensure!(ended.state() == ringtune_proto::v1::JobState::Failed, "{ended:?}");
    ensure!(ended.step == 0 && ended.state_reason.contains("another model"), "{}", ended.state_reason);
    Ok(())
}

#[tokio::test]
async fn a_model_comes_from_a_bucket_that_the_machines_role_opens() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let bucket = Bucket::serve(&places::toy_checkpoint(), "sd/toy").await?;
    let service = Metadata::start().await?;
    let mut cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator()).await?;
    let mut launch = Launch::worker("worker-1", FAKE_WORKER, &cluster.coordinator.grpc)
        .variable("XDG_CACHE_HOME", &text(&sandbox.path("cache")))
        .variable("RINGTUNE__CLOUD__PROVIDER", "aws")
        .variable("RINGTUNE__CLOUD__ENDPOINT", &service.endpoint);
    // Where the bucket is, and no key to it.
    for (name, value) in bucket.variables().into_iter().filter(|(name, _)| !name.contains("_KEY")) {
        launch = launch.variable(name, value);
    }
    cluster.add_worker(launch).await?;
    let job = Job::toy()?.set("model.base", "s3://models/sd/toy").set("train.max_train_steps", 2);
    let id = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    cluster.wait_for_success(&id).await?;
    let asked = service.heard().iter().any(|path| path.ends_with(ROLE));
    ensure!(asked, "the role was not asked for: {:?}", service.heard());
    Ok(())
}

/// By rank 0 while the job runs, and by the command afterwards.
#[tokio::test]
async fn a_jobs_files_go_to_a_bucket_within_what_the_worker_allows() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let bucket = Bucket::serve(&sandbox.path("nothing"), "none").await?;
    let mut cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator()).await?;
    let mut launch = Launch::worker("worker-1", FAKE_WORKER, &cluster.coordinator.grpc)
        .variable("RINGTUNE__ACCESS__OUTPUT_BUCKETS", "s3://models/results");
    for (name, value) in bucket.variables() {
        launch = launch.variable(name, value);
    }
    cluster.add_worker(launch).await?;
    let job = |url: &str| -> Result<Job> {
        let job = Job::toy()?.set("train.max_train_steps", 6).set("train.checkpointing_steps", 2);
        Ok(job.set("train.checkpoints_total_limit", 1).set("output.url", url))
    };
    // 1. Each file of the job, and none that the job has not any more.
    let id = cluster.submit(&sandbox.write_job("job.toml", &job("s3://models/results/toy")?)?).await?;
    cluster.wait_for_success(&id).await?;
    let learned = cluster.learned(&id, "here").await?;
    for name in fs::read_dir(sandbox.path("here"))? {
        let name = name?.file_name().to_string_lossy().into_owned();
        let there = bucket.get(&format!("results/toy/{name}")).await.with_context(|| name.clone())?;
        ensure!(there == fs::read(sandbox.path("here").join(&name))?, "{name} is another one");
    }
    ensure!(bucket.get("results/toy/checkpoint-2.safetensors").await.is_err(), "an old checkpoint is there");
    // 2. By the command.
    let coordinator = format!("http://{}", cluster.coordinator.grpc);
    let fetch = |place: &str| -> Result<Command> {
        let mut command = sandbox.ringtune(&["fetch", &id, "-o", place, "--coordinator", &coordinator])?;
        command.envs(bucket.variables());
        Ok(command)
    };
    let fetched = finish(&mut fetch("s3://models/fetched")?).await?.expect_code(0)?;
    ensure!(fetched.stdout.contains(&format!("s3://models/fetched/{EMBEDDING}\n")), "{}", fetched.stdout);
    ensure!(!fetched.stderr.contains(Bucket::SECRET), "the key was said");
    fetched.expect_said(&["in s3://models/fetched"])?;
    ensure!(bucket.get(&format!("fetched/{EMBEDDING}")).await? == learned, "another file");
    finish(&mut fetch("s3://nobodys/a")?).await?.expect_code(1)?.expect_said(&["--output-dir", "nobodys"])?;
    let run = sandbox.finish(&["run", "job.toml", "-o", "s3://models/run"]).await?.expect_code(2)?;
    run.expect_said(&["saves in a folder of this machine", "[output] url"])?;
    // 3. What is out of reach, and what is no bucket.
    let id = cluster.submit(&sandbox.write_job("job.toml", &job("s3://models/elsewhere")?)?).await?;
    let failed = cluster.wait_for_end(&id).await?;
    let why = failed.state_reason.as_str();
    ensure!(why.contains("output.url") && why.contains("access.output_buckets"), "{failed:?}");
    let file = sandbox.write_job("job.toml", &job("/a")?)?;
    let line = ["submit", &text(&file), "--coordinator", &coordinator];
    sandbox
        .finish(&line)
        .await?
        .expect_code(2)?
        .expect_said(&["output.url", "allowed: s3://BUCKET/PREFIX"])?;
    Ok(())
}
