//! Workers that link no libtorch: everything around the engine, end to end.

use std::{fs, net::Ipv4Addr};

use anyhow::{Context as _, Result, ensure};
use ringtune_fake_engine::FakeEngine;
use ringtune_proto::v1::JobState;
use ringtune_tests::{Cluster, Job, Sandbox, Visitor, job::text};
use safetensors::SafeTensors;

/// Runs a job on so many of them and gives the embedding that it learned.
async fn learned_by(workers: usize) -> Result<Vec<u8>> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start_fake(&sandbox, workers).await?;
    let job = Job::toy()?
        .set("train.num_vectors", 2)
        .set("train.save_steps", 2)
        .set("train.max_train_steps", 5)
        .set("cluster.world_size", 2)
        .set("cluster.min_world_size", 1);
    let id = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    let ended = cluster.wait_for_end(&id).await?;
    ensure!(ended.state() == JobState::Succeeded, "the job is {:?}: {}", ended.state(), ended.state_reason);
    ensure!(ended.step == 5, "it made {} steps", ended.step);
    for worker in cluster.workers.iter().filter(|_| workers > 1) {
        // They are on one machine, so that nothing of the ring goes through their ports.
        let page = Visitor::plain().get(worker.http.parse()?, Ipv4Addr::LOCALHOST, "/metrics").await?;
        let streams = |way: &str| {
            let name = format!("ringtune_worker_ring_streams_total{{way=\"{way}\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&name)).context("no such metric")
        };
        ensure!(streams("memory")? != "0" && streams("tcp")? == "0", "{page}");
    }
    let output = sandbox.path("output");
    cluster.finish(&["fetch", &id, "-o", &text(&output)]).await?.expect_code(0)?;
    fs::read(output.join("learned_embeds.safetensors")).context("the learned embedding")
}

#[tokio::test]
async fn a_worker_without_libtorch_does_whole_jobs() -> Result<()> {
    let alone = learned_by(1).await?;
    let tensors = SafeTensors::deserialize(&alone)?;
    let learned = tensors.tensor("<green-star>")?;
    ensure!(learned.shape() == [2, FakeEngine::TEXT_WIDTH], "of the shape {:?}", learned.shape());
    ensure!(learned_by(2).await? == alone, "two ranks learn something else than one");
    Ok(())
}
