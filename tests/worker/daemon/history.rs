//! The steps that workers reported, and the one call of JobService that gives them back.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use ringtune_proto::v1::{self, job_service_server::JobService};
use tokio_stream::Empty;
use tonic::{Request, Response, Status};

use crate::support::not_needed;

/// Steps of one answer, few, so that there are several.
const PAGE: usize = 7;

/// The first report of each step, by job.
#[derive(Clone, Default)]
pub struct Steps(Arc<Mutex<BTreeMap<(String, i64), v1::StepReport>>>);

impl Steps {
    pub fn keep(&self, step: &v1::RankStep) {
        let report = step.step.clone().unwrap();
        self.0.lock().unwrap().entry((step.job_id.clone(), report.step)).or_insert(report);
    }

    /// The numbers of a job's steps.
    pub fn numbers(&self, job: ringtune_shared::ids::JobId) -> Vec<i64> {
        let steps = self.0.lock().unwrap();
        steps.keys().filter(|(of, _)| *of == job.to_string()).map(|(_, step)| *step).collect()
    }

    /// A job's steps, as they were reported first.
    pub fn of_job(&self, job: ringtune_shared::ids::JobId) -> Vec<v1::StepReport> {
        let steps = self.0.lock().unwrap();
        steps.iter().filter(|((of, _), _)| *of == job.to_string()).map(|(_, step)| step.clone()).collect()
    }
}

pub struct History(pub Steps);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl JobService for History {
    type WatchJobStream = Empty<Result<v1::WatchJobResponse, Status>>;
    type WatchJobsStream = Empty<Result<v1::WatchJobsResponse, Status>>;

    async fn list_steps(&self, request: Request<v1::ListStepsRequest>) -> Answer<v1::ListStepsResponse> {
        let v1::ListStepsRequest { job_id, after_step, .. } = request.into_inner();
        let steps = self.0.0.lock().unwrap();
        let later = steps.iter().filter(|((job, step), _)| *job == job_id && *step > after_step);
        let steps = later.map(|(_, report)| report.clone()).take(PAGE).collect();
        Ok(Response::new(v1::ListStepsResponse { steps, next_page_token: String::new() }))
    }

    not_needed! {
        create_job(v1::CreateJobRequest) -> v1::CreateJobResponse;
        create_sweep(v1::CreateSweepRequest) -> v1::CreateSweepResponse;
        get_sweep(v1::GetSweepRequest) -> v1::GetSweepResponse;
        cancel_sweep(v1::CancelSweepRequest) -> v1::CancelSweepResponse;
        verify_job(v1::VerifyJobRequest) -> v1::VerifyJobResponse;
        get_job(v1::GetJobRequest) -> v1::GetJobResponse;
        list_jobs(v1::ListJobsRequest) -> v1::ListJobsResponse;
        cancel_job(v1::CancelJobRequest) -> v1::CancelJobResponse;
        pause_job(v1::PauseJobRequest) -> v1::PauseJobResponse;
        order_job(v1::OrderJobRequest) -> v1::OrderJobResponse;
        resume_job(v1::ResumeJobRequest) -> v1::ResumeJobResponse;
        delete_job(v1::DeleteJobRequest) -> v1::DeleteJobResponse;
        watch_job(v1::WatchJobRequest) -> Self::WatchJobStream;
        watch_jobs(v1::WatchJobsRequest) -> Self::WatchJobsStream;
        list_events(v1::ListEventsRequest) -> v1::ListEventsResponse;
    }
}
