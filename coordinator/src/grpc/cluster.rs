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
use crate::core::{JobState, Worker, WorkerState};
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

fn worker_id(text: &str) -> Result<WorkerId, FailedRequest> {
    Ok(parse("worker_id", text)?)
}
