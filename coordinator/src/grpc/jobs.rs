//! JobService.

use std::sync::Arc;

use prost::Message as _;
use ringtune_proto::convert::{FieldError, parse, spec_from_wire, unsigned};
use ringtune_proto::v1::{self, job_service_server::JobService};
use ringtune_shared::ids::{CONTENT_URI_PREFIX, ContentHash, JobId};
use ringtune_shared::spec::JobSpec;
use tonic::{Request, Response, Status};
use tonic_types::FieldViolation;

use super::status::{FailedRequest, bad_request, bad_spec};
use super::watches::{self, Answers};
use super::{Api, outbound, pages};
use crate::core::{JobState, NewJob, RequestKey};

/// Characters of a request id.
const LONGEST_REQUEST_ID: usize = 128;
/// Jobs on a page, by default and at most.
const JOBS: (u32, u32) = (50, 500);
/// Steps on a page, by default and at most.
const STEPS: (u32, u32) = (1000, 10_000);

#[derive(Clone)]
pub(super) struct Jobs(pub(super) Arc<Api>);

#[tonic::async_trait]
impl JobService for Jobs {
    type WatchJobStream = Answers<v1::WatchJobResponse>;
    type WatchJobsStream = Answers<v1::WatchJobsResponse>;

    async fn create_job(
        &self,
        request: Request<v1::CreateJobRequest>,
    ) -> Result<Response<v1::CreateJobResponse>, Status> {
        let request = request.into_inner();
        let wire = request.spec.unwrap_or_default();
        let key = request_key(request.request_id, &wire).map_err(FailedRequest::from)?;
        let mut spec = spec_from_wire(wire).map_err(bad_spec)?;
        spec.check_paths().map_err(bad_spec)?;
        let images = self.check_images(&spec).await.map_err(bad_request)?;
        resolve_epochs(&mut spec, images)?;
        self.0.images.check_embeddings(&spec).await.map_err(bad_request)?;
        let resumed = self.0.images.resumed(&spec).await.map_err(bad_request)?;
        let new = NewJob { id: JobId::new(), spec: Arc::new(spec), request: key, resumed };
        let job = self.0.handle.create_job(new).await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::CreateJobResponse { job: Some(outbound::job(&job)) }))
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let job = self.job(&request.into_inner().job_id).await?;
        Ok(Response::new(v1::GetJobResponse { job: Some(outbound::job(&job)) }))
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        Ok(Response::new(self.page_of_jobs(request.into_inner()).await?))
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        let request = request.into_inner();
        let id = job_id(&request.job_id)?;
        let job = self.0.handle.cancel_job(id, request.reason).await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::CancelJobResponse { job: Some(outbound::job(&job)) }))
    }

    async fn pause_job(
        &self,
        _request: Request<v1::PauseJobRequest>,
    ) -> Result<Response<v1::PauseJobResponse>, Status> {
        Err(Status::unimplemented("this version cannot pause jobs"))
    }

    async fn resume_job(
        &self,
        _request: Request<v1::ResumeJobRequest>,
    ) -> Result<Response<v1::ResumeJobResponse>, Status> {
        Err(Status::unimplemented("this version cannot resume jobs"))
    }

    async fn delete_job(
        &self,
        request: Request<v1::DeleteJobRequest>,
    ) -> Result<Response<v1::DeleteJobResponse>, Status> {
        let id = job_id(&request.into_inner().job_id)?;
        self.0.images.delete_job(id).await?;
        Ok(Response::new(v1::DeleteJobResponse {}))
    }

    async fn watch_job(
        &self,
        request: Request<v1::WatchJobRequest>,
    ) -> Result<Response<Self::WatchJobStream>, Status> {
        Ok(Response::new(watches::watch_job(&self.0, request.into_inner()).await?))
    }

    async fn watch_jobs(
        &self,
        request: Request<v1::WatchJobsRequest>,
    ) -> Result<Response<Self::WatchJobsStream>, Status> {
        Ok(Response::new(watches::watch_jobs(&self.0, request.into_inner()).await?))
    }

    async fn list_steps(
        &self,
        request: Request<v1::ListStepsRequest>,
    ) -> Result<Response<v1::ListStepsResponse>, Status> {
        Ok(Response::new(self.page_of_steps(request.into_inner()).await?))
    }
}

impl Jobs {
    async fn job(&self, text: &str) -> Result<crate::core::Job, FailedRequest> {
        Ok(self.0.handle.job(job_id(text)?).await?)
    }

    /// How many images an epoch of the job shows, where all of them are uploaded. Those that are must be here.
    async fn check_images(&self, spec: &JobSpec) -> Result<Option<u64>, Vec<FieldViolation>> {
        let mut places = spec.clone();
        let mut count = Some(0);
        let uses = spec.image_uses();
        for ((field, images), used) in places.image_sources().into_iter().zip(uses) {
            let uploaded = images.starts_with(CONTENT_URI_PREFIX);
            let found = if uploaded { Some(self.0.images.check(&field, images).await?) } else { None };
            count = count.zip(found).map(|(count, found)| count + found * u64::from(used.repeats));
        }
        Ok(count)
    }

    async fn page_of_jobs(
        &self,
        request: v1::ListJobsRequest,
    ) -> Result<v1::ListJobsResponse, FailedRequest> {
        let size = pages::size(request.page_size, JOBS.0, JOBS.1)?;
        let mut states =
            request.states.iter().map(|state| listed_state(*state)).collect::<Result<Vec<_>, _>>()?;
        states.sort_unstable();
        states.dedup();
        let list = format!("jobs {states:?}");
        let below = pages::last_number(&list, &request.page_token)?;
        let filter: Vec<JobState> = states.iter().copied().flatten().collect();
        if filter.is_empty() && !states.is_empty() {
            // Only states that no job of this version can be in.
            return Ok(v1::ListJobsResponse::default());
        }
        // One more than asked for tells whether there is another page.
        let mut jobs = self.0.handle.store().jobs(&filter, below, size + 1).await?;
        let more = jobs.len() > size as usize;
        jobs.truncate(size as usize);
        let last = jobs.last().filter(|_| more);
        Ok(v1::ListJobsResponse {
            next_page_token: last.map(|job| pages::token(&list, &job.number.to_string())).unwrap_or_default(),
            jobs: jobs.iter().map(outbound::job).collect(),
        })
    }

    async fn page_of_steps(
        &self,
        request: v1::ListStepsRequest,
    ) -> Result<v1::ListStepsResponse, FailedRequest> {
        let job = self.job(&request.job_id).await?.id;
        let size = pages::size(request.page_size, STEPS.0, STEPS.1)?;
        let list = format!("steps {job} {}", request.after_step);
        let first: u64 = unsigned("after_step", request.after_step)?;
        let after = pages::last_number(&list, &request.page_token)?.unwrap_or(first);
        let mut steps = self.0.handle.store().steps(job, after, size + 1).await?;
        let more = steps.len() > size as usize;
        steps.truncate(size as usize);
        let last = steps.last().filter(|_| more);
        Ok(v1::ListStepsResponse {
            next_page_token: last.map(|step| pages::token(&list, &step.step.to_string())).unwrap_or_default(),
            steps: steps.iter().map(outbound::step).collect(),
        })
    }
}

/// Makes steps of a job's epochs.
fn resolve_epochs(spec: &mut JobSpec, images: Option<u64>) -> Result<(), Status> {
    if !spec.needs_image_count() {
        return Ok(());
    }
    let Some(images) = images else {
        let problem =
            "only uploaded images can be counted here, and these are in a folder; give max_train_steps";
        return Err(bad_request(vec![FieldViolation::new("spec.train.num_train_epochs", problem)]));
    };
    spec.resolve_epochs(images).map_err(bad_spec)
}

pub(super) fn job_id(text: &str) -> Result<JobId, FailedRequest> {
    Ok(parse("job_id", text)?)
}

/// The key of a request: its id and the hash of the spec as sent.
fn request_key(id: String, spec: &v1::JobSpec) -> Result<Option<RequestKey>, FieldError> {
    let length = id.chars().count();
    if length > LONGEST_REQUEST_ID {
        let problem = format!("{length} characters; allowed: at most {LONGEST_REQUEST_ID}");
        return Err(FieldError::new("request_id", problem));
    }
    // Without maps in it, equal specs have equal bytes.
    let fingerprint = ContentHash::of(&spec.encode_to_vec());
    Ok((!id.is_empty()).then_some(RequestKey { id, fingerprint }))
}

/// A state to list; none for PAUSED, in which no job can be yet.
fn listed_state(wire: i32) -> Result<Option<JobState>, FieldError> {
    match v1::JobState::try_from(wire) {
        Ok(v1::JobState::Queued) => Ok(Some(JobState::Queued)),
        Ok(v1::JobState::Preparing) => Ok(Some(JobState::Preparing)),
        Ok(v1::JobState::Running) => Ok(Some(JobState::Running)),
        Ok(v1::JobState::Paused) => Ok(None),
        Ok(v1::JobState::Succeeded) => Ok(Some(JobState::Succeeded)),
        Ok(v1::JobState::Failed) => Ok(Some(JobState::Failed)),
        Ok(v1::JobState::Cancelled) => Ok(Some(JobState::Cancelled)),
        Ok(v1::JobState::Unspecified) | Err(_) => {
            Err(FieldError::new("states", format!("got {wire}; allowed: 1 (QUEUED) to 7 (CANCELLED)")))
        }
    }
}
