//! ClusterService.

use std::sync::Arc;

use ringtune_proto::convert::parse;
use ringtune_proto::v1::{self, cluster_service_server::ClusterService};
use ringtune_shared::ids::WorkerId;
use ringtune_shared::version::WORKER_PROTOCOLS;
use tonic::{Request, Response, Status};

use super::access::call_of;
use super::reach::sees;
use super::status::FailedRequest;
use super::{Api, outbound};
use crate::access::Call;
use crate::core::{JobState, Limits, OwnerLimits, OwnerLoad, Usage, Worker, WorkerState};
use crate::service::Error;

#[derive(Clone)]
pub(super) struct Cluster(pub(super) Arc<Api>);

#[tonic::async_trait]
impl ClusterService for Cluster {
    async fn list_workers(
        &self,
        request: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        let call = call_of(&request);
        Ok(Response::new(self.page_of_workers(&call, &request.into_inner())?))
    }

    async fn get_worker(
        &self,
        request: Request<v1::GetWorkerRequest>,
    ) -> Result<Response<v1::GetWorkerResponse>, Status> {
        let call = call_of(&request);
        let id = worker_id(&request.into_inner().worker_id)?;
        Ok(Response::new(v1::GetWorkerResponse { worker: Some(self.worker(&call, id)?) }))
    }

    async fn drain_worker(
        &self,
        request: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        let call = call_of(&request);
        let id = worker_id(&request.into_inner().worker_id)?;
        call.about(id);
        self.0.handle.drain(id, true).await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::DrainWorkerResponse { worker: Some(self.worker(&call, id)?) }))
    }

    async fn undrain_worker(
        &self,
        request: Request<v1::UndrainWorkerRequest>,
    ) -> Result<Response<v1::UndrainWorkerResponse>, Status> {
        let call = call_of(&request);
        let id = worker_id(&request.into_inner().worker_id)?;
        call.about(id);
        self.0.handle.drain(id, false).await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::UndrainWorkerResponse { worker: Some(self.worker(&call, id)?) }))
    }

    async fn get_cluster(
        &self,
        _request: Request<v1::GetClusterRequest>,
    ) -> Result<Response<v1::GetClusterResponse>, Status> {
        let cluster = self.0.handle.cluster();
        let workers = |state| i32::try_from(cluster.count_workers(state)).unwrap_or(i32::MAX);
        let jobs = |state| i32::try_from(cluster.count_jobs(state)).unwrap_or(i32::MAX);
        Ok(Response::new(v1::GetClusterResponse {
            version: ringtune_shared::version::VERSION.to_owned(),
            workers_idle: workers(WorkerState::Idle),
            workers_busy: workers(WorkerState::Busy),
            workers_lost: workers(WorkerState::Lost),
            jobs_queued: jobs(JobState::Queued),
            jobs_active: jobs(JobState::Preparing).saturating_add(jobs(JobState::Running)),
            start_time: Some(outbound::time(self.0.handle.started())),
            protocol_min: WORKER_PROTOCOLS.min,
            protocol_max: WORKER_PROTOCOLS.max,
        }))
    }

    async fn get_limits(
        &self,
        request: Request<v1::GetLimitsRequest>,
    ) -> Result<Response<v1::GetLimitsResponse>, Status> {
        let call = call_of(&request);
        let (owner, themselves) =
            call.asks_about(request.into_inner().owner).map_err(|denied| self.0.deny(denied))?;
        let files = self.0.quotas.usage(&owner).await.map_err(FailedRequest::from)?;
        let most = self.0.submitter_priority;
        let priority = if themselves { call.highest_priority(most) } else { most };
        let cluster = self.0.handle.cluster();
        let limits = limits(&cluster.options().limits, cluster.load_of(&owner), priority, files);
        Ok(Response::new(v1::GetLimitsResponse { owner, limits }))
    }
}

impl Cluster {
    fn worker(&self, call: &Call, id: WorkerId) -> Result<v1::Worker, FailedRequest> {
        let cluster = self.0.handle.cluster();
        let worker = cluster.worker(id).ok_or(Error::NoSuchWorker(id))?;
        Ok(self.shown(call, &cluster, worker))
    }

    /// A worker, without the job that it works on where that is somebody else's.
    pub(super) fn shown(&self, call: &Call, cluster: &crate::core::Cluster, worker: &Worker) -> v1::Worker {
        let shown = outbound::worker(cluster, worker);
        match cluster.place_of(worker.id) {
            Some(place) if !sees(call, cluster, place.job()) => {
                v1::Worker { job_id: String::new(), rank: None, ..shown }
            }
            _ => shown,
        }
    }
}

/// What one owner has of what is limited, and may have. `files`: none where nobody counts them.
fn limits(
    limits: &Limits,
    load: OwnerLoad,
    priority: u32,
    files: Option<(Usage, OwnerLimits)>,
) -> Vec<v1::Limit> {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let limit = |setting: &str, what: &str, used: Option<u64>, allowed: u64| v1::Limit {
        setting: setting.to_owned(),
        what: what.to_owned(),
        used: used.map(number),
        allowed: Some(allowed).filter(|allowed| *allowed > 0 || used.is_none()).map(number),
    };
    let mut all = vec![
        limit("limits.owner_ranks", "ranks", Some(load.ranks.into()), limits.owner_ranks.into()),
        limit(
            "limits.owner_queued_jobs",
            "jobs in the queue",
            Some(load.queued as u64),
            limits.owner_queued_jobs as u64,
        ),
        limit(
            "limits.queued_jobs",
            "jobs in the queue, of all owners",
            Some(load.queued_of_all as u64),
            limits.queued_jobs as u64,
        ),
        limit("queue.submitter_priority", "priority of a job", None, priority.into()),
    ];
    if let Some((used, allowed)) = files {
        all.push(limit("limits.owner_bytes", "bytes of files", Some(used.bytes), allowed.bytes));
        all.push(limit("limits.owner_files", "files", Some(used.files), allowed.files));
    }
    all
}

fn worker_id(text: &str) -> Result<WorkerId, FailedRequest> {
    Ok(parse("worker_id", text)?)
}
