//! The page of the coordinator, in a headless Chromium, against real daemons and real jobs.

mod browser;
mod certificate;
mod hidden;
mod hostile;
mod loading;
mod login;
mod many;
mod modules;
mod pictures;
mod running;
mod runs;
mod sweeps;
mod texts;
mod webdriver;

use anyhow::{Context as _, Result};
use ringtune_proto::v1::{self, job_service_client::JobServiceClient};
use ringtune_tests::{Cluster, Job};
use tonic::transport::Channel;

/// The page of a coordinator.
fn address(cluster: &Cluster<'_>) -> String {
    let scheme = if cluster.coordinator.door().is_locked() { "https" } else { "http" };
    format!("{scheme}://{}", cluster.coordinator.http)
}

/// The view of one job.
fn job_address(cluster: &Cluster<'_>, job_id: &str) -> String {
    format!("{}/#/jobs/{job_id}", address(cluster))
}

/// A job of so many ranks that has no end of its own.
fn endless(ranks: i64) -> Result<Job> {
    Ok(Job::toy()?
        .set("name", "endless star")
        .set("train.max_train_steps", 100_000)
        .set("train.checkpointing_steps", 0)
        .set("train.save_steps", 0)
        .set("train.validation_loss_steps", 10)
        .set("train.validation_loss_samples", 2)
        .set("train.report_to", "none")
        .shared_by(ranks))
}

/// Queues a job for which nobody looks at any file.
async fn create(
    client: &mut JobServiceClient<Channel>,
    number: usize,
    name: &str,
    queue: v1::QueueSpec,
) -> Result<String> {
    let spec = v1::JobSpec { name: name.to_owned(), ..ringtune_tests::swarm::quick_job(1, 100) };
    let request_id = format!("page-{number}");
    let request =
        v1::CreateJobRequest { spec: Some(spec), request_id, queue: Some(queue), ..Default::default() };
    let created = client.create_job(request).await?.into_inner().job;
    Ok(created.context("a job")?.job_id)
}
