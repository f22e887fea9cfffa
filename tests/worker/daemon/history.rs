//! The steps that workers reported, and the one call of JobService that gives them back.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use ringtune_proto::v1::{self, job_service_server::JobService};
use tokio_stream::Empty;
use tonic::{Request, Response, Status};

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

fn not_needed<T>() -> Answer<T> {
    Err(Status::unimplemented("not needed"))
}

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

    async fn create_job(&self, _: Request<v1::CreateJobRequest>) -> Answer<v1::CreateJobResponse> {
        not_needed()
    }

    async fn verify_job(&self, _: Request<v1::VerifyJobRequest>) -> Answer<v1::VerifyJobResponse> {
        not_needed()
    }

    async fn get_job(&self, _: Request<v1::GetJobRequest>) -> Answer<v1::GetJobResponse> {
        not_needed()
    }

    async fn list_jobs(&self, _: Request<v1::ListJobsRequest>) -> Answer<v1::ListJobsResponse> {
        not_needed()
    }

    async fn cancel_job(&self, _: Request<v1::CancelJobRequest>) -> Answer<v1::CancelJobResponse> {
        not_needed()
    }

    async fn pause_job(&self, _: Request<v1::PauseJobRequest>) -> Answer<v1::PauseJobResponse> {
        not_needed()
    }

    async fn resume_job(&self, _: Request<v1::ResumeJobRequest>) -> Answer<v1::ResumeJobResponse> {
        not_needed()
    }

    async fn delete_job(&self, _: Request<v1::DeleteJobRequest>) -> Answer<v1::DeleteJobResponse> {
        not_needed()
    }

    async fn watch_job(&self, _: Request<v1::WatchJobRequest>) -> Answer<Self::WatchJobStream> {
        not_needed()
    }

    async fn watch_jobs(&self, _: Request<v1::WatchJobsRequest>) -> Answer<Self::WatchJobsStream> {
        not_needed()
    }

    async fn list_events(&self, _: Request<v1::ListEventsRequest>) -> Answer<v1::ListEventsResponse> {
        not_needed()
    }
}
