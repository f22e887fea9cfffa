//! JobService.

use std::sync::Arc;

use prost::Message as _;
use ringtune_proto::convert::{
    FieldError, order_from_wire, queue_from_wire, queue_to_wire, spec_from_wire, spec_to_wire,
};
use ringtune_proto::v1::{self, job_service_server::JobService};
use ringtune_shared::checkpoint::Resumed;
use ringtune_shared::ids::{ContentHash, JobId};
use ringtune_shared::job::{JobRequest, JobSpec, QueueSpec, parse_job_request};
use ringtune_shared::trace::TraceContext;
use tonic::{Request, Response, Status};

use super::access::call_of;
use super::ids::{job_id, sweep_id};
use super::reach::redact_for;
use super::status::{FailedRequest, bad_field, bad_job_file, bad_queue, bad_spec};
use super::traced::{Making, parent_of};
use super::watches::{self, Answers};
use super::{Api, outbound};
use crate::access::Call;
use crate::core::{Job, NewJob, RequestKey, Time};
use crate::references::Ties;

/// Characters of a request id.
const LONGEST_REQUEST_ID: usize = 128;

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
        let (call, parent, id) = (call_of(&request), parent_of(&request), JobId::new());
        let making = Making::begin(&self.0.tracer, parent, id, "CreateJob");
        match self.create(&call, request.into_inner(), id, making.trace).await {
            Ok(mut job) => {
                making.done(job.id);
                redact_for(&call, Arc::make_mut(&mut job));
                call.about(job.id);
                Ok(Response::new(v1::CreateJobResponse { job: Some(outbound::job(&job)) }))
            }
            Err(refused) => {
                making.failed();
                Err(refused)
            }
        }
    }

    async fn create_sweep(
        &self,
        request: Request<v1::CreateSweepRequest>,
    ) -> Result<Response<v1::CreateSweepResponse>, Status> {
        let (call, parent, id) = (call_of(&request), parent_of(&request), JobId::new());
        let making = Making::begin(&self.0.tracer, parent, id, "CreateSweep");
        match self.make_sweep(&call, request.into_inner(), id, making.trace).await {
            Ok(first) => {
                making.done(first.id);
                let id = first.sweep.as_ref().map(|place| place.sweep);
                let id = id.ok_or_else(|| Status::internal("a sweep's job is of none"))?;
                call.about(id);
                let sweep = self.sweep(&call, id).await?;
                Ok(Response::new(v1::CreateSweepResponse { sweep: Some(sweep) }))
            }
            Err(refused) => {
                making.failed();
                Err(refused)
            }
        }
    }

    async fn get_sweep(
        &self,
        request: Request<v1::GetSweepRequest>,
    ) -> Result<Response<v1::GetSweepResponse>, Status> {
        let call = call_of(&request);
        let sweep = self.sweep(&call, sweep_id(&request.into_inner().sweep_id)?).await?;
        Ok(Response::new(v1::GetSweepResponse { sweep: Some(sweep) }))
    }

    async fn cancel_sweep(
        &self,
        request: Request<v1::CancelSweepRequest>,
    ) -> Result<Response<v1::CancelSweepResponse>, Status> {
        let call = call_of(&request);
        let request = request.into_inner();
        let id = sweep_id(&request.sweep_id)?;
        call.about(id);
        // One out of reach does not exist.
        self.sweep(&call, id).await?;
        self.0.handle.cancel_sweep(id, request.reason).await.map_err(FailedRequest::from)?;
        let sweep = self.sweep(&call, id).await?;
        Ok(Response::new(v1::CancelSweepResponse { sweep: Some(sweep) }))
    }

    async fn verify_job(
        &self,
        request: Request<v1::VerifyJobRequest>,
    ) -> Result<Response<v1::VerifyJobResponse>, Status> {
        let (call, parent, id) = (call_of(&request), parent_of(&request), JobId::new());
        let making = Making::begin(&self.0.tracer, parent, id, "VerifyJob");
        match self.create_verification(&call, request.into_inner(), id, making.trace).await {
            Ok(mut job) => {
                making.done(job.id);
                redact_for(&call, Arc::make_mut(&mut job));
                Ok(Response::new(v1::VerifyJobResponse { job: Some(outbound::job(&job)) }))
            }
            Err(refused) => {
                making.failed();
                Err(refused.into())
            }
        }
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::GetJobResponse>, Status> {
        let call = call_of(&request);
        let request = request.into_inner();
        let job = self.0.job(&call, job_id(&request.job_id)?).await?;
        let timings = outbound::timings(&self.0.handle.timings(job.id));
        let timings = Some(timings).filter(|timings| !timings.ranks.is_empty());
        let job_file = if request.with_job_file { outbound::job_file(&job) } else { String::new() };
        Ok(Response::new(v1::GetJobResponse { job: Some(outbound::job(&job)), timings, job_file }))
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        let call = call_of(&request);
        Ok(Response::new(self.page_of_jobs(&call, request.into_inner()).await?))
    }

    async fn cancel_job(
        &self,
        request: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        let call = call_of(&request);
        let request = request.into_inner();
        let id = job_id(&request.job_id)?;
        call.about(id);
        self.0.check_reach(&call, id).await?;
        let job = self.0.handle.cancel_job(id, request.reason).await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::CancelJobResponse { job: Some(outbound::job(&job)) }))
    }

    async fn pause_job(
        &self,
        request: Request<v1::PauseJobRequest>,
    ) -> Result<Response<v1::PauseJobResponse>, Status> {
        let call = call_of(&request);
        let id = job_id(&request.into_inner().job_id)?;
        call.about(id);
        self.0.check_reach(&call, id).await?;
        let job = self.0.handle.pause_job(id).await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::PauseJobResponse { job: Some(outbound::job(&job)) }))
    }

    async fn resume_job(
        &self,
        request: Request<v1::ResumeJobRequest>,
    ) -> Result<Response<v1::ResumeJobResponse>, Status> {
        let call = call_of(&request);
        let id = job_id(&request.into_inner().job_id)?;
        call.about(id);
        self.0.check_reach(&call, id).await?;
        let job = self.0.handle.resume_job(id).await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::ResumeJobResponse { job: Some(outbound::job(&job)) }))
    }

    async fn order_job(
        &self,
        request: Request<v1::OrderJobRequest>,
    ) -> Result<Response<v1::OrderJobResponse>, Status> {
        let call = call_of(&request);
        let request = request.into_inner();
        let id = job_id(&request.job_id)?;
        call.about(id);
        self.0.check_reach(&call, id).await?;
        let (order, after_step) = order_from_wire(request.order).map_err(|error| bad_field(&error))?;
        order.check().map_err(bad_queue)?;
        let job = self.0.handle.order_job(id, order, after_step).await.map_err(FailedRequest::from)?;
        let number = job.orders.last().map_or(0, |order| order.live.number);
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        Ok(Response::new(v1::OrderJobResponse { job: Some(outbound::job(&job)), number }))
    }

    async fn delete_job(
        &self,
        request: Request<v1::DeleteJobRequest>,
    ) -> Result<Response<v1::DeleteJobResponse>, Status> {
        let call = call_of(&request);
        let id = job_id(&request.into_inner().job_id)?;
        call.about(id);
        self.0.check_reach(&call, id).await?;
        self.0.references.delete_job(id).await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::DeleteJobResponse {}))
    }

    async fn watch_job(
        &self,
        request: Request<v1::WatchJobRequest>,
    ) -> Result<Response<Self::WatchJobStream>, Status> {
        Ok(Response::new(watches::watch_job(&self.0, &call_of(&request), request.into_inner()).await?))
    }

    async fn watch_jobs(
        &self,
        request: Request<v1::WatchJobsRequest>,
    ) -> Result<Response<Self::WatchJobsStream>, Status> {
        Ok(Response::new(watches::watch_jobs(&self.0, &call_of(&request), request.into_inner()).await?))
    }

    async fn list_steps(
        &self,
        request: Request<v1::ListStepsRequest>,
    ) -> Result<Response<v1::ListStepsResponse>, Status> {
        let call = call_of(&request);
        Ok(Response::new(self.page_of_steps(&call, request.into_inner()).await?))
    }

    async fn list_events(
        &self,
        request: Request<v1::ListEventsRequest>,
    ) -> Result<Response<v1::ListEventsResponse>, Status> {
        let call = call_of(&request);
        Ok(Response::new(self.page_of_events(&call, request.into_inner()).await?))
    }
}

impl Jobs {
    /// Checks a request and makes a job of it.
    async fn create(
        &self,
        call: &Call,
        mut request: v1::CreateJobRequest,
        id: JobId,
        trace: Option<TraceContext>,
    ) -> Result<Arc<Job>, Status> {
        if !request.job_file.is_empty() {
            if request.spec.is_some() || request.queue.is_some() {
                let problem = "comes in place of spec and queue: give one or the other";
                return Err(bad_field(&FieldError::new("job_file", problem)));
            }
            let JobRequest { spec, queue } =
                parse_job_request(&request.job_file, &[]).map_err(bad_job_file)?;
            (request.spec, request.queue) = (Some(spec_to_wire(&spec)), Some(queue_to_wire(&queue)));
        }
        let wire = request.spec.unwrap_or_default();
        let queue = self.check_queue(call, request.queue)?;
        let key = request_key(call, request.request_id, &sent(&wire, &queue)).map_err(FailedRequest::from)?;
        let mut ties = Ties::default();
        let (spec, resumed) = self.check_spec(&mut ties, wire).await?;
        let (spec, queue) = (Arc::new(spec), Arc::new(queue));
        let new = NewJob { id, spec, queue, request: key, resumed, trace, sweep: None };
        Ok(self.0.references.create_job(new, ties).await.map_err(FailedRequest::from)?)
    }

    /// The queue's entry of a new job, which the caller may ask for.
    pub(super) fn check_queue(&self, call: &Call, wire: Option<v1::QueueSpec>) -> Result<QueueSpec, Status> {
        let mut queue = queue_from_wire(wire).map_err(bad_queue)?;
        queue.owner = call.owner(queue.owner).map_err(|denied| self.0.deny(denied))?;
        let most = self.0.submitter_priority;
        call.check_priority(queue.priority, most).map_err(|denied| self.0.deny(denied))?;
        if queue.ends_by(None).is_some_and(|end| Time(end) <= self.0.handle.now()) {
            let problem = format!("got {:?}, which is over; allowed: a time to come", queue.deadline);
            return Err(bad_field(&FieldError::new("queue.deadline", problem)));
        }
        Ok(queue)
    }

    /// The spec of a new job, and what it goes on from. `ties`: get the contents that it needs.
    pub(super) async fn check_spec(
        &self,
        ties: &mut Ties,
        wire: v1::JobSpec,
    ) -> Result<(JobSpec, Option<Resumed>), Status> {
        let mut spec = spec_from_wire(wire).map_err(bad_spec)?;
        spec.check_paths().map_err(bad_spec)?;
        let references = &self.0.references;
        let images = references.check_images(ties, &spec).await.map_err(FailedRequest::from)?;
        count_steps(&mut spec, images)?;
        references.check_embeddings(ties, &spec).await.map_err(FailedRequest::from)?;
        let resumed = references.resumed(ties, &spec).await.map_err(FailedRequest::from)?;
        Ok((spec, resumed))
    }
}

/// Counts the steps of a job that says how many passes over its pictures it takes.
fn count_steps(spec: &mut JobSpec, images: Option<u64>) -> Result<(), Status> {
    if !spec.needs_image_count() {
        return Ok(());
    }
    let Some(images) = images else {
        let problem = "the coordinator can only count images that are uploaded, and these are in a folder; give max_train_steps";
        return Err(bad_field(&FieldError::new("spec.train.num_train_epochs", problem)));
    };
    spec.count_steps(images).map_err(bad_spec)
}

/// Refuses a request id that is too long.
pub(super) fn check_request_id(id: &str) -> Result<(), FieldError> {
    let length = id.chars().count();
    if length > LONGEST_REQUEST_ID {
        let problem = format!("{length} characters; allowed: at most {LONGEST_REQUEST_ID}");
        return Err(FieldError::new("request_id", problem));
    }
    Ok(())
}

/// What makes a request for a job another one: the spec as sent, and the queue where it says anything.
pub(super) fn sent(spec: &v1::JobSpec, queue: &QueueSpec) -> Vec<u8> {
    // Equal specs have equal bytes: their maps are in order.
    let mut sent = spec.encode_to_vec();
    if *queue != QueueSpec::default() {
        let priority = queue.priority.to_string();
        let retries = [queue.worker_retries, queue.error_retries].map(|retries| retries.to_string());
        let mut parts = vec![queue.owner.as_str(), priority.as_str()];
        parts.extend(queue.labels.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]));
        let max_seconds = queue.max_seconds.to_string();
        if !queue.deadline.is_empty() || queue.max_seconds > 0 {
            parts.extend([queue.deadline.as_str(), max_seconds.as_str()]);
        }
        let usual = QueueSpec::default();
        if (queue.worker_retries, queue.error_retries) != (usual.worker_retries, usual.error_retries) {
            parts.extend(retries.iter().map(String::as_str));
        }
        for part in parts {
            sent.extend_from_slice(&(part.len() as u64).to_be_bytes());
            sent.extend_from_slice(part.as_bytes());
        }
    }
    sent
}

/// The key of a request: its id and the hash of what was sent.
pub(super) fn request_key(call: &Call, id: String, sent: &[u8]) -> Result<Option<RequestKey>, FieldError> {
    check_request_id(&id)?;
    let (id, fingerprint) = (call.own_request(id), ContentHash::of(sent));
    Ok((!id.is_empty()).then_some(RequestKey { id, fingerprint }))
}
