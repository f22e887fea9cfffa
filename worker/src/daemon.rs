//! The daemon: puts the parts together, in the order in which they can fail, and ends them.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use ringtune_shared::daemon::{
    lifecycle::{DRAIN_LIMIT, Shutdown},
    listen::{self, Launch, ListenError},
    settings::SettingsError,
    state_lock::StateLockError,
};
use ringtune_sources::{Environment, ModelSources, Patience, hub_endpoint};
use tokio::{net::TcpListener, task::JoinError, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Server, server::TcpIncoming};
use tracing::{error, info, warn};

use crate::{
    access::Access,
    advertise::{AdvertiseError, advertised_address},
    base_model::Fingerprints,
    capabilities::{capabilities, default_threads},
    contents::{self, ArtifactClient, ContentCache},
    engine::{EngineError, EngineHandle, EngineIdentity, StartEngine},
    http::{self, Metrics, MetricsError},
    latents::LatentCache,
    node::Node,
    rank::Context,
    ring::{self, RingOptions, RingServer, Rings},
    session::{self, LinkOptions, SessionOptions},
    settings::Settings,
    state_folder::{StateFolder, StateFolderError},
};

/// Calls that one connection may have open here: a neighbour has one.
const MOST_CALLS_A_CONNECTION: usize = 32;
/// How long the worker may take to end.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Of that, what its ring may take to go on without a running rank: it takes its step to the end.
const LEAVE_LIMIT: Duration = Duration::from_secs(20);
/// And what the rank may then take to upload what it has; the rest is for saying how it ended.
const KEEP_LIMIT: Duration = Duration::from_secs(8);
const _: () = assert!(LEAVE_LIMIT.as_secs() + KEEP_LIMIT.as_secs() < END_LIMIT.as_secs());

/// Why a worker does not start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Values out of range.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The state folder.
    #[error(transparent)]
    StateFolder(#[from] StateFolderError),
    /// The ports.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// What to tell the neighbours.
    #[error(transparent)]
    Advertise(#[from] AdvertiseError),
    /// The library that computes.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The metrics' registry.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The cache.
    #[error("cache: {0}")]
    Cache(#[source] Box<contents::Error>),
    /// The coordinator's address.
    #[error("coordinator.url: {0}")]
    Coordinator(#[source] tonic::transport::Error),
    /// A server ended.
    #[error("the {0} server ended: {1}")]
    Server(&'static str, String),
    /// stdin or stdout.
    #[error("the parent process cannot be told: {0}")]
    Announce(#[source] io::Error),
    /// The engine came to no end.
    #[error("the engine hangs: only another process can compute again")]
    Hung,
    /// A second signal.
    #[error("ended at once by a second signal")]
    Forced,
    /// A part of the worker died.
    #[error("a part of the worker ended unexpectedly: {0}")]
    Task(#[from] JoinError),
}

impl Error {
    /// The user has to change a flag or a setting: exit code 2.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Settings(_)
                | Self::Advertise(AdvertiseError::Malformed { .. } | AdvertiseError::UnknownInterface { .. })
                | Self::StateFolder(StateFolderError::Lock(StateLockError::Taken { .. }))
        )
    }
}

/// Runs a worker until `shutdown`, on an engine with the threads that the settings or the machine have.
pub async fn run(
    settings: Settings,
    launch: Launch,
    shutdown: Shutdown,
    start: StartEngine,
) -> Result<(), Error> {
    let threads = default_threads(&detect().await?, settings.compute.threads);
    run_with(settings, launch, shutdown, move || start(threads)).await
}

/// Runs a worker on any engine until `shutdown`. The engine is started once nothing else can go wrong cheaply.
pub async fn run_with(
    settings: Settings,
    launch: Launch,
    shutdown: Shutdown,
    start_engine: impl FnOnce() -> Result<EngineHandle, EngineError> + Send + 'static,
) -> Result<(), Error> {
    // 1. What can be refused at once.
    settings.validate()?;
    let state_dir = settings.storage.state_dir.clone();
    let state = tokio::task::spawn_blocking(move || StateFolder::open(&state_dir)).await??;
    let grpc = listen::bind("grpc.listen", settings.grpc.listen, launch.free_ports).await?;
    let http = listen::bind("http.listen", settings.http.listen, launch.free_ports).await?;
    let (grpc_address, http_address) = (address_of(&grpc)?, address_of(&http)?);
    let advertising = settings.clone();
    let address =
        tokio::task::spawn_blocking(move || advertised_address(&advertising, grpc_address)).await??;
    // 2. The engine, and what it is.
    let node = detect().await?;
    let engine = tokio::task::spawn_blocking(start_engine).await??;
    let identity = engine.identity().await?;
    let threads = default_threads(&node, settings.compute.threads);
    log_start(&node, &identity, threads, &address);
    // 3. The shared parts.
    let metrics = Arc::new(Metrics::new()?);
    let rings = Rings::new(
        RingOptions { peer_timeout: settings.peer_timeout(), ..RingOptions::default() },
        Arc::clone(&metrics),
    );
    let context = context(&settings, &state, &engine, &identity, &rings, &metrics)?;
    // 4. Servers.
    let end_servers = CancellationToken::new();
    let _end_servers = end_servers.clone().drop_guard();
    let grpc_server = tokio::spawn(serve_grpc(grpc, rings, end_servers.clone().cancelled_owned()));
    let http_server =
        tokio::spawn(http::serve(http, Arc::clone(&metrics), end_servers.clone().cancelled_owned()));
    if launch.announce {
        listen::announce(grpc_address, http_address, &state.worker().to_string()).map_err(Error::Announce)?;
    }
    info!(grpc = %grpc_address, http = %http_address, worker = %state.worker(), "listening");
    // 5. The session, until the end.
    let link = LinkOptions {
        url: settings.coordinator.url.clone(),
        worker: state.worker(),
        incarnation: state.incarnation(),
        host_name: node.host_name.clone(),
        address,
        capabilities: capabilities(&node, &identity, threads),
    };
    let options = SessionOptions { link, metrics, leave_limit: LEAVE_LIMIT, keep_limit: KEEP_LIMIT };
    let (end, hung) = (shutdown.soft.child_token(), context.hung.clone());
    let session = session::run(options, context, end.clone());
    let ended = tokio::select! {
        () = drained(session, &end, &shutdown) => Ok(()),
        () = ended_by_hanging(&hung, &end) => Ok(()),
        ended = grpc_server => Err(Error::Server("gRPC", outcome(ended))),
        ended = http_server => Err(Error::Server("HTTP", outcome(ended))),
    };
    end_servers.cancel();
    if hung.is_cancelled() {
        return Err(Error::Hung);
    }
    // 6. libtorch is not to be pulled from under its own feet: give a running step the time that is left.
    let engine_ended = engine.ended();
    drop(engine);
    tokio::select! {
        waited = timeout(DRAIN_LIMIT, engine_ended.cancelled()) => {
            if waited.is_err() {
                warn!("the engine is still in the middle of a step");
            }
            ended
        }
        () = shutdown.hard.cancelled() => Err(Error::Forced),
    }
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, Error> {
    listener.local_addr().map_err(Error::Announce)
}

async fn detect() -> Result<Node, JoinError> {
    tokio::task::spawn_blocking(Node::detect).await
}

fn log_start(node: &Node, identity: &EngineIdentity, threads: usize, address: &str) {
    let flags = node.cpu.flags.join(" ");
    info!(
        libtorch = identity.library_version,
        instructions = identity.instruction_set,
        cpu = node.cpu.model,
        flags,
        threads,
        bf16 = node.cpu.has_bf16(),
        advertised = address,
        "worker"
    );
}

fn context(
    settings: &Settings,
    state: &StateFolder,
    engine: &EngineHandle,
    identity: &EngineIdentity,
    rings: &Rings,
    metrics: &Arc<Metrics>,
) -> Result<Context, Error> {
    let environment = Environment::of_process();
    let rules = settings.access_rules(&environment);
    // Whoever wants a model of a hub is told why there is none.
    let hub = hub_endpoint(&environment).unwrap_or_default();
    Ok(Context {
        engine: engine.clone(),
        artifacts: ArtifactClient::new(&settings.coordinator.url).map_err(Error::Coordinator)?,
        cache: ContentCache::open(state.cache_folder(), settings.storage.cache_bytes)
            .map_err(|error| Error::Cache(Box::new(error)))?,
        latents: open_latents(settings, state)?,
        latent_memory_bytes: settings.storage.latent_memory_bytes,
        access: Access::new(rules, &hub, state.views_folder()),
        models: ModelSources::new(
            environment.clone(),
            settings.model_cache.options(&environment, &settings.storage.state_dir),
            Patience::default(),
        ),
        fingerprints: Arc::new(Fingerprints::default()),
        rings: rings.clone(),
        metrics: Arc::clone(metrics),
        work_folder: state.work_folder(),
        hung: CancellationToken::new(),
        recovery_interval: settings.recovery_interval(),
        allow_trace_dir: settings.debug.allow_trace_dir,
        about: format!("libtorch {}, {}", identity.library_version, identity.instruction_set),
    })
}

fn open_latents(settings: &Settings, state: &StateFolder) -> Result<LatentCache, Error> {
    let folder = state.latents_folder();
    LatentCache::open(folder.clone(), settings.storage.latent_cache_bytes)
        .map_err(|source| Error::Cache(Box::new(contents::Error::Io { path: folder, source })))
}

/// The session's whole life: it goes on until asked to end, then may take a bounded time, and no time at all after
/// the second signal.
async fn drained(session: impl Future<Output = ()>, end: &CancellationToken, shutdown: &Shutdown) {
    let bound = async {
        end.cancelled().await;
        tokio::time::sleep(END_LIMIT).await;
        warn!("the drain took longer than {} s", END_LIMIT.as_secs());
    };
    tokio::select! {
        () = session => (),
        () = bound => (),
        () = shutdown.hard.cancelled() => (),
    }
}

/// Ends the session once the engine hangs; never ends itself.
async fn ended_by_hanging(hung: &CancellationToken, end: &CancellationToken) {
    hung.cancelled().await;
    error!("the engine hangs: this worker ends");
    end.cancel();
    std::future::pending().await
}

async fn serve_grpc(
    listener: TcpListener,
    rings: Rings,
    end: impl Future<Output = ()>,
) -> Result<(), String> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<ringtune_proto::v1::ring_service_server::RingServiceServer<RingServer>>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(ringtune_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let reflection_v1 = reflection().build_v1().map_err(|error| error.to_string())?;
    let reflection_v1alpha = reflection().build_v1alpha().map_err(|error| error.to_string())?;
    let (keep_alive_interval, keep_alive_timeout) = rings.keep_alive();
    Server::builder()
        .concurrency_limit_per_connection(MOST_CALLS_A_CONNECTION)
        .max_frame_size(ring::MOST_FRAME_BYTES)
        .initial_stream_window_size(ring::WINDOW_BYTES)
        .initial_connection_window_size(ring::WINDOW_BYTES)
        .http2_keepalive_interval(Some(keep_alive_interval))
        .http2_keepalive_timeout(Some(keep_alive_timeout))
        .add_service(health_service)
        .add_service(reflection_v1)
        .add_service(reflection_v1alpha)
        .add_service(RingServer::service(rings))
        .serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), end)
        .await
        .map_err(|error| session::error_chain(&error))
}

fn outcome<E: std::fmt::Display>(ended: Result<Result<(), E>, JoinError>) -> String {
    let text = match ended {
        Ok(Ok(())) => "nobody asked it to".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    error!("{text}");
    text
}
