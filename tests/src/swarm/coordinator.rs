//! The real coordinator that a swarm calls: started, killed and started again.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ringtune_proto::v1::{self, cluster_service_client::ClusterServiceClient};
use tonic::transport::{Channel, Endpoint};

use super::{JobList, Swarm};
use crate::{Daemon, Launch, Sandbox};

/// A coordinator whose state and log are in a sandbox.
#[derive(Debug)]
pub struct Coordinator<'a> {
    sandbox: &'a Sandbox,
    variables: Vec<(&'static str, String)>,
    daemon: Daemon,
    channel: Channel,
}

impl<'a> Coordinator<'a> {
    /// Starts one; `variables` are settings, as in RINGTUNE__LIMITS__WORKERS.
    ///
    /// # Errors
    /// It does not start; its log is in the error.
    pub async fn start(sandbox: &'a Sandbox, variables: Vec<(&'static str, String)>) -> Result<Self> {
        Self::start_at(sandbox, variables, "127.0.0.1:0").await
    }

    async fn start_at(
        sandbox: &'a Sandbox,
        variables: Vec<(&'static str, String)>,
        listen: &str,
    ) -> Result<Self> {
        let plain = Launch { listen: listen.to_owned(), ..Launch::coordinator() };
        let launch = variables.iter().fold(plain, |launch, (name, value)| launch.variable(name, value));
        let daemon = launch.start(sandbox).await?;
        let channel = Endpoint::from_shared(format!("http://{}", daemon.grpc))?.tcp_nodelay(true);
        Ok(Self { sandbox, variables, daemon, channel: channel.connect_lazy() })
    }

    /// Kills it and starts it again on its state, at its address; returns how long the new one took to be ready.
    ///
    /// # Errors
    /// As [`Coordinator::start`].
    pub async fn replace(self, swarm: &Swarm) -> Result<(Self, Duration)> {
        let address = self.daemon.grpc.clone();
        swarm.coordinator_goes();
        self.daemon.kill().await?;
        swarm.coordinator_comes();
        let start = Instant::now();
        let next = Self::start_at(self.sandbox, self.variables, &address).await?;
        Ok((next, start.elapsed()))
    }

    /// HOST:PORT of its gRPC services.
    pub fn address(&self) -> String {
        self.daemon.grpc.clone()
    }

    /// Its process.
    ///
    /// # Errors
    /// It has ended.
    pub fn process_id(&self) -> Result<u32> {
        self.daemon.process_id().context("the coordinator has ended")
    }

    /// Its jobs; all calls go over one connection.
    pub fn jobs(&self) -> JobList {
        JobList::new(self.channel.clone())
    }

    /// Number of workers with a session, by its own count.
    ///
    /// # Errors
    /// The coordinator's.
    pub async fn connected_workers(&self) -> Result<usize> {
        let cluster = self.cluster().get_cluster(v1::GetClusterRequest {}).await?.into_inner();
        Ok(usize::try_from(cluster.workers_idle + cluster.workers_busy)?)
    }

    /// Every worker that it knows.
    ///
    /// # Errors
    /// The coordinator's.
    #[allow(clippy::needless_update, reason = "the request gets more fields, which the swarm leaves alone")]
    pub async fn workers(&self) -> Result<Vec<v1::Worker>> {
        let (mut workers, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = v1::ListWorkersRequest { page_size: 500, page_token, ..Default::default() };
            let page = self.cluster().list_workers(request).await?.into_inner();
            workers.extend(page.workers);
            if page.next_page_token.is_empty() {
                return Ok(workers);
            }
            page_token = page.next_page_token;
        }
    }

    fn cluster(&self) -> ClusterServiceClient<Channel> {
        ClusterServiceClient::new(self.channel.clone())
    }
}
