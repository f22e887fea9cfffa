//! What a swarm works on, and what the coordinator says of it.

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::{self, JobState, job_service_client::JobServiceClient};
use tonic::transport::Channel;

use super::{Ledger, ranks::loss_of};

/// The name of jobs that step once in a while ([`super::Options::step_time`]).
pub const PACED: &str = "paced";
/// The name of jobs that make their steps at once.
pub const QUICK: &str = "quick";

/// The largest pages that there are.
const JOBS_A_PAGE: i32 = 500;
const STEPS_A_PAGE: i32 = 10_000;

/// A job of so many ranks and steps that has a pace.
pub fn paced_job(ranks: i64, steps: i64) -> v1::JobSpec {
    job(PACED, ranks, steps)
}

/// A job of so many ranks and steps that is over as soon as the coordinator has heard all of it.
pub fn quick_job(ranks: i64, steps: i64) -> v1::JobSpec {
    job(QUICK, ranks, steps)
}

/// The folders need not exist: only workers look into them, and fake ones do not.
fn job(name: &str, ranks: i64, steps: i64) -> v1::JobSpec {
    v1::JobSpec {
        kind: "textual_inversion".to_owned(),
        name: name.to_owned(),
        model: Some(v1::ModelSpec { base: "/models/base".to_owned(), ..v1::ModelSpec::default() }),
        data: Some(v1::DataSpec { images: "/images/star".to_owned(), ..v1::DataSpec::default() }),
        train: Some(v1::TrainSpec {
            placeholder_token: "<star>".to_owned(),
            initializer_token: "star".to_owned(),
            max_train_steps: Some(steps),
            ..v1::TrainSpec::default()
        }),
        cluster: Some(v1::ClusterSpec { world_size: Some(ranks), ..v1::ClusterSpec::default() }),
        ..v1::JobSpec::default()
    }
}

/// The coordinator's jobs.
#[derive(Debug, Clone)]
pub struct JobList(JobServiceClient<Channel>);

#[allow(clippy::needless_update, reason = "requests get more fields, which the swarm leaves alone")]
impl JobList {
    /// Over one connection.
    pub fn new(channel: Channel) -> Self {
        Self(JobServiceClient::new(channel).max_decoding_message_size(64 << 20))
    }

    /// Queues a job; returns its id. A repetition with the same request id makes no second one.
    ///
    /// # Errors
    /// The coordinator's.
    pub async fn create(
        &mut self,
        spec: v1::JobSpec,
        queue: v1::QueueSpec,
        request_id: String,
    ) -> Result<String> {
        let queue = Some(queue);
        let request = v1::CreateJobRequest { spec: Some(spec), queue, request_id, ..Default::default() };
        let created = self.0.create_job(request).await?.into_inner();
        Ok(created.job.context("CreateJob answers without a job")?.job_id)
    }

    /// A page of the list: its jobs, and the token of the next page.
    ///
    /// # Errors
    /// The coordinator's.
    pub async fn page(&mut self, page_size: i32, page_token: String) -> Result<(Vec<v1::Job>, String)> {
        let request = v1::ListJobsRequest { page_size, page_token, ..Default::default() };
        let page = self.0.list_jobs(request).await?.into_inner();
        Ok((page.jobs, page.next_page_token))
    }

    /// All jobs in a state.
    ///
    /// # Errors
    /// The coordinator's.
    pub async fn in_state(&mut self, state: JobState) -> Result<Vec<v1::Job>> {
        let mut jobs = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListJobsRequest {
                page_size: JOBS_A_PAGE,
                page_token,
                states: vec![state.into()],
                ..Default::default()
            };
            let page = self.0.list_jobs(request).await?.into_inner();
            jobs.extend(page.jobs);
            if page.next_page_token.is_empty() {
                return Ok(jobs);
            }
            page_token = page.next_page_token;
        }
    }

    /// Asks a job to stop.
    ///
    /// # Errors
    /// The coordinator's.
    pub async fn cancel(&mut self, job_id: String) -> Result<()> {
        let request = v1::CancelJobRequest { job_id, reason: "the measurement is over".to_owned() };
        self.0.cancel_job(request).await?;
        Ok(())
    }

    /// How many step reports of a job were lost: made by the swarm, and not in the coordinator's list.
    ///
    /// # Errors
    /// The coordinator's; or it lists a step that nobody made, out of order, twice, or with another loss.
    pub async fn lost_steps(&mut self, job_id: &str, ledger: &Ledger) -> Result<i64> {
        let mut listed: Vec<v1::StepReport> = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListStepsRequest {
                job_id: job_id.to_owned(),
                page_size: STEPS_A_PAGE,
                page_token,
                ..Default::default()
            };
            let page = self.0.list_steps(request).await?.into_inner();
            listed.extend(page.steps);
            if page.next_page_token.is_empty() {
                break;
            }
            page_token = page.next_page_token;
        }
        // Asked for now, it is not below what was listed.
        let made = ledger.last_step(job_id);
        let mut last = 0;
        for report in &listed {
            ensure!(
                report.step > last && report.step <= made && report.loss == loss_of(report.step),
                "job {job_id}: {report:?} is listed after step {last}; {made} steps were made"
            );
            last = report.step;
        }
        Ok(made - i64::try_from(listed.len())?)
    }
}
