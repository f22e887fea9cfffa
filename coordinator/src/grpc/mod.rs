//! The gRPC services: thin handlers that parse, ask the [`Handle`], and answer.
//!
//! Invariant: ids and numbers from outside are parsed here, once; errors become statuses in
//! `status.rs` alone; calls are counted, bounded and traced by layers, not by handlers.

mod access;
mod allowance;
mod artifacts;
mod cluster;
mod ids;
mod inbound;
mod incoming;
mod jobs;
mod limits;
mod lists;
mod outbound;
mod outgoing;
mod reach;
mod status;
mod sweeps;
mod traced;
mod trust;
mod verify;
mod watches;
mod workers;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringtune_proto::v1::{
    self, access_service_server::AccessServiceServer, artifact_service_server::ArtifactServiceServer,
    cluster_service_server::ClusterServiceServer, job_service_server::JobServiceServer,
    worker_service_server::WorkerServiceServer,
};
use ringtune_security::Listener;
use ringtune_traces::Tracer;
use ringtune_web::Calls;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::service::Routes;
use tonic::transport::Server;
use tower::ServiceBuilder;
use tower::layer::util::{Identity, Stack};
use tower_http::classify::{GrpcErrorsAsFailures, SharedClassifier};
use tower_http::trace::{DefaultOnFailure, TraceLayer};
use tracing::{Level, warn};

use crate::access::{Access, table};
use crate::contents::Contents;
use crate::metrics::{Layer as MetricsLayer, Metrics};
use crate::network::activity::ActivityLayer;
use crate::network::authority::Pki;
use crate::quotas::Quotas;
use crate::references::References;
use crate::scrapes::Scrapes;
use crate::service::Handle;
use status::FailedRequest;

/// WatchJob and WatchJobs streams that may be open at a time.
const WATCHES: usize = 1024;
/// Downloads that may be under way at a time.
const DOWNLOADS: usize = 256;
/// Between two looks for files that nobody wants.
const SWEEP: Duration = Duration::from_secs(3600);

/// HTTP/2: a DATA frame; hyper writes one a system call.
const FRAME: u32 = 1 << 20;
/// HTTP/2: bytes on their way in one stream, and in one connection.
const WINDOWS: (u32, u32) = (4 << 20, 16 << 20);
/// HTTP/2: a ping after so long without traffic, and how long its answer may take.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));
/// HTTP/2: bytes of all headers of a call, names, values and 32 for each; more is refused. Ours have some hundreds, and a
/// header that goes on in ever more frames ends its connection.
const HEADERS: u32 = 16 << 10;
/// HTTP/2: streams that a client took back before they were looked at, and streams that were refused for an error of the
/// client; one more ends its connection. The second number is for the whole life of a connection, and what a client was
/// still sending when it was told to stop may count: a worker's connection stands for months.
const RESETS: (usize, usize) = (20, 1024);
/// Bytes of a request to the services that strangers may call.
const SMALL_REQUEST: usize = 16 << 10;

/// What the services are made from.
pub struct Options {
    /// The state.
    pub handle: Handle,
    /// The files.
    pub contents: Contents,
    /// What is counted.
    pub metrics: Metrics,
    /// Takes spans of calls that make jobs.
    pub tracer: Tracer,
    /// Who may do what.
    pub access: Access,
    /// How much each owner may have.
    pub quotas: Quotas,
    /// The highest priority that a submitter may give a job.
    pub submitter_priority: u32,
    /// What each worker is told first.
    pub welcome: v1::Welcome,
    /// How long a call with a single answer may take.
    pub call_limit: Duration,
    /// Calls under way on one connection.
    pub calls_per_connection: usize,
    /// Who signs and whose certificates are believed, where the port speaks TLS.
    pub pki: Option<Pki>,
    /// An upload, a download or a watch whose client does nothing for so long loses its place.
    pub idle_limit: Duration,
    /// Ends all streams when cancelled; then no new calls are taken.
    pub shutdown: CancellationToken,
}

/// What the handlers share.
struct Api {
    handle: Handle,
    contents: Contents,
    references: Arc<References>,
    metrics: Metrics,
    tracer: Tracer,
    access: Access,
    quotas: Quotas,
    submitter_priority: u32,
    scrapes: Scrapes,
    welcome: v1::Welcome,
    pki: Option<Pki>,
    watches: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    idle_limit: Duration,
    shutdown: CancellationToken,
}

/// Why the server could not be set up or broke.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something is served of which nobody said who may call it.
    #[error(transparent)]
    Table(#[from] table::TableError),
    /// The API's own description is not readable.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The listener's or HTTP/2's.
    #[error("gRPC: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// The services with their layers: one stack, whoever calls it.
pub struct Services {
    routes: Routes,
    layers: Layers,
    scrapes: Scrapes,
    sweeper: AbortOnDropHandle<()>,
    calls_per_connection: usize,
    shutdown: CancellationToken,
}

/// What every call goes through.
type Layers = ServiceBuilder<
    Stack<
        limits::CallLimitLayer,
        Stack<access::AccessLayer, Stack<MetricsLayer, Stack<TraceLayer<Failures>, Identity>>>,
    >,
>;
type Failures = SharedClassifier<GrpcErrorsAsFailures>;

/// Serves until `shutdown` is cancelled and the calls under way then have ended. That may take as long
/// as the slowest client: the caller bounds it.
///
/// # Errors
/// See [`Error`].
pub async fn serve(listener: Listener, options: Options) -> Result<(), Error> {
    Services::new(options).await?.serve(listener).await
}

impl Services {
    /// The services without a port.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn new(options: Options) -> Result<Self, Error> {
        table::check_grpc()?;
        let Options { handle, contents, metrics, tracer, access, quotas, welcome, pki, shutdown, .. } =
            options;
        let references = Arc::new(References::new(handle.clone(), contents.clone(), quotas.clone()));
        let sweeper = AbortOnDropHandle::new(tokio::spawn(sweep(references.clone(), access.clone())));
        let layers = ServiceBuilder::new()
            // What is refused is counted, and audited where it would have changed something: a stranger could fill the log.
            .layer(TraceLayer::new_for_grpc().on_failure(DefaultOnFailure::new().level(Level::DEBUG)))
            .layer(MetricsLayer(metrics.clone()))
            .layer(access::AccessLayer(access.clone()))
            .layer(limits::CallLimitLayer(options.call_limit));
        let scrapes = Scrapes::default();
        let api = Arc::new(Api {
            handle,
            contents,
            references,
            metrics,
            tracer,
            access,
            quotas,
            submitter_priority: options.submitter_priority,
            scrapes: scrapes.clone(),
            welcome,
            pki,
            watches: Arc::new(Semaphore::new(WATCHES)),
            downloads: Arc::new(Semaphore::new(DOWNLOADS)),
            idle_limit: options.idle_limit,
            shutdown: shutdown.clone(),
        });
        let routes = routes(api).await?;
        let calls_per_connection = options.calls_per_connection;
        Ok(Self { routes, layers, scrapes, sweeper, calls_per_connection, shutdown })
    }

    /// The sessions of workers, for whoever wants to know what they count.
    pub fn scrapes(&self) -> Scrapes {
        self.scrapes.clone()
    }

    /// The services for callers in this process: every call goes through the same layers as one to the port.
    pub fn calls(&self) -> Calls {
        Calls::new(self.layers.clone().service(self.routes.clone().prepare()))
    }

    /// Serves until the shutdown, as [`serve`] does.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn serve(self, listener: Listener) -> Result<(), Error> {
        let calls = u32::try_from(self.calls_per_connection).unwrap_or(u32::MAX);
        let served = Server::builder()
            .concurrency_limit_per_connection(self.calls_per_connection)
            .load_shed(true)
            .max_concurrent_streams(calls)
            .max_frame_size(FRAME)
            .initial_stream_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .http2_keepalive_interval(Some(KEEPALIVE.0))
            .http2_keepalive_timeout(Some(KEEPALIVE.1))
            .http2_max_header_list_size(HEADERS)
            .http2_max_pending_accept_reset_streams(Some(RESETS.0))
            .http2_max_local_error_reset_streams(Some(RESETS.1))
            .layer(ActivityLayer)
            .layer(self.layers)
            .add_routes(self.routes)
            .serve_with_incoming_shutdown(listener, self.shutdown.cancelled_owned())
            .await;
        drop(self.sweeper);
        Ok(served?)
    }
}

/// All services.
async fn routes(api: Arc<Api>) -> Result<Routes, Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<JobServiceServer<jobs::Jobs>>().await;
    health.set_serving::<ClusterServiceServer<cluster::Cluster>>().await;
    health.set_serving::<ArtifactServiceServer<artifacts::Artifacts>>().await;
    health.set_serving::<WorkerServiceServer<workers::Workers>>().await;
    health.set_serving::<AccessServiceServer<access::AccessCalls>>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(ringtune_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Routes::new(health_service.max_decoding_message_size(SMALL_REQUEST))
        .add_service(reflection().build_v1()?.max_decoding_message_size(SMALL_REQUEST))
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(SMALL_REQUEST))
        .add_service(JobServiceServer::new(jobs::Jobs(api.clone())))
        .add_service(ClusterServiceServer::new(cluster::Cluster(api.clone())))
        .add_service(ArtifactServiceServer::new(artifacts::Artifacts(api.clone())))
        .add_service(
            AccessServiceServer::new(access::AccessCalls(api.clone()))
                .max_decoding_message_size(SMALL_REQUEST),
        )
        .add_service(WorkerServiceServer::new(workers::Workers(api))))
}

/// Looks for files that nobody wants, and for tokens and certificates that have expired, for ever.
async fn sweep(references: Arc<References>, access: Access) {
    let mut ticker = tokio::time::interval(SWEEP);
    let mut is_start = true;
    loop {
        ticker.tick().await;
        // A start removes nothing for good: whoever sees by it that something is wrong has time to stop it.
        if !std::mem::replace(&mut is_start, false)
            && let Err(failed) = references.empty_trash(SystemTime::now()).await
        {
            warn!(status = %Status::from(FailedRequest::from(failed)), "could not empty the trash");
        }
        if let Err(failed) = references.sweep(SystemTime::now()).await {
            warn!(status = %Status::from(FailedRequest::from(failed)), "could not look for unwanted files");
        }
        if let Err(error) = access.sweep().await {
            warn!(%error, "could not remove expired tokens and certificates");
        }
    }
}

/// Runs file I/O on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, FailedRequest> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| Status::internal("a file operation was interrupted").into())
}
