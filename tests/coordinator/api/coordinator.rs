//! A coordinator in this process, and clients of it.

use std::path::Path;

use ringtune_coordinator::{
    daemon::{Daemon, Error},
    network::authority::Pki,
    settings::Settings,
};
use ringtune_proto::v1::{
    artifact_service_client::ArtifactServiceClient, cluster_service_client::ClusterServiceClient,
    job_service_client::JobServiceClient, worker_service_client::WorkerServiceClient,
};
use ringtune_security::{Connector, Credentials, Server, Trust};
use ringtune_shared::daemon::{lifecycle::Shutdown, listen::Launch};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinHandle,
};
use tonic::transport::{Channel, Endpoint};

use crate::soon;

/// A running coordinator and one connection to it.
pub(crate) struct Coordinator {
    pub(crate) channel: Channel,
    pub(crate) http: std::net::SocketAddr,
    pub(crate) address: std::net::SocketAddr,
    /// Set if it speaks TLS; then the channel is the admin's.
    pub(crate) pki: Option<Pki>,
    shutdown: Shutdown,
    ended: JoinHandle<Result<(), Error>>,
    /// Its state folder, if no other coordinator will use it.
    own_state: Option<TempDir>,
}

impl Coordinator {
    /// On a state folder of its own.
    pub(crate) async fn fresh() -> Self {
        Self::fresh_with(|_| ()).await
    }

    pub(crate) async fn fresh_with(change: impl FnOnce(&mut Settings)) -> Self {
        let state = tempfile::tempdir().unwrap();
        let coordinator = Self::start_with(state.path(), change).await;
        Self { own_state: Some(state), ..coordinator }
    }

    /// On a state folder that others have had or will have.
    pub(crate) async fn start(state: &Path) -> Self {
        Self::start_with(state, |_| ()).await
    }

    /// Starts with changed settings; by default silence ends no session.
    pub(crate) async fn start_with(state: &Path, change: impl FnOnce(&mut Settings)) -> Self {
        Self::try_start_with(state, change).await.unwrap()
    }

    /// On a state folder that may not be in order.
    pub(crate) async fn try_start(state: &Path) -> Result<Self, Error> {
        Self::try_start_with(state, |_| ()).await
    }

    pub(crate) async fn try_start_with(
        state: &Path,
        change: impl FnOnce(&mut Settings),
    ) -> Result<Self, Error> {
        let mut settings = Settings::default();
        settings.grpc.listen = ([127, 0, 0, 1], 0).into();
        settings.http.listen = ([127, 0, 0, 1], 0).into();
        settings.storage.state_dir = state.to_owned();
        settings.session.timeout_seconds = 600.0;
        change(&mut settings);
        let shutdown = Shutdown::default();
        let daemon = Daemon::start(settings, Launch::default(), shutdown.clone()).await?;
        let http = daemon.http_address();
        let address = daemon.grpc_address();
        let pki = daemon.pki().cloned();
        let channel = match &pki {
            None => Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy(),
            Some(_) => {
                let admin = Credentials::load(&state.join("admin")).unwrap().unwrap();
                secure_channel(address, Trust::of(admin).unwrap())
            }
        };
        let ended = tokio::spawn(daemon.ended());
        Ok(Self { channel, http, address, pki, shutdown, ended, own_state: None })
    }

    /// Ends it as a first signal does.
    pub(crate) async fn stop(self) {
        self.shutdown.soft.cancel();
        soon("the coordinator's end", self.ended).await.unwrap().unwrap();
        drop(self.own_state);
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ended(self) -> Result<(), Error> {
        soon("the coordinator's end", self.ended).await.unwrap()
    }

    /// The HTTP port's answer, head and body.
    pub(crate) async fn http_get(&self, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(self.http).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        soon("an HTTP answer", stream.read_to_string(&mut answer)).await.unwrap();
        answer
    }

    pub(crate) fn jobs(&self) -> JobServiceClient<Channel> {
        JobServiceClient::new(self.channel.clone())
    }

    pub(crate) fn artifacts(&self) -> ArtifactServiceClient<Channel> {
        ArtifactServiceClient::new(self.channel.clone())
    }

    pub(crate) fn cluster(&self) -> ClusterServiceClient<Channel> {
        ClusterServiceClient::new(self.channel.clone())
    }

    pub(crate) fn workers(&self) -> WorkerServiceClient<Channel> {
        WorkerServiceClient::new(self.channel.clone())
    }
}

/// A connection to a coordinator that speaks TLS.
pub(crate) fn secure_channel(address: std::net::SocketAddr, trust: Trust) -> Channel {
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    endpoint.connect_with_connector_lazy(Connector::to(trust, Server::Coordinator))
}
