//! The daemon: puts the parts together, in the order in which they can fail, and ends them.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use ringtune_security::JoinToken;
use ringtune_shared::daemon::{
    lifecycle::{DRAIN_LIMIT, Shutdown},
    listen::{self, Launch, ListenError},
    notify::Notifier,
    settings::{SecuritySettings, SettingsError},
    state_lock::StateLockError,
};
use ringtune_sources::{ModelSources, Patience, hub_endpoint};
use ringtune_traces::{About, Tracer};
use tokio::{net::TcpListener, runtime::Handle, task::JoinError, time::timeout};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::{error, info, warn};

use crate::{
    access::Access,
    advertise::{AdvertiseError, Advertised},
    base_model::Fingerprints,
    capabilities::{capabilities, default_threads},
    cloud::{Cloud, Trouble, Zone},
    contents::{self, ArtifactClient, ContentCache},
    engine::{EngineError, EngineHandle, EngineIdentity, StartEngine, Threads},
    http::{Metrics, MetricsError},
    latents::LatentCache,
    membership::{self, Entering, Membership, MembershipError},
    node::{Claim, CoreClaim, Node, Wish, keep_blocks},
    probe,
    rank::Context,
    ring::{RingOptions, RingThread, Rings},
    servers::{self, Port, ServerError},
    session::{self, LinkOptions, SessionOptions},
    settings::Settings,
    state_folder::{StateFolder, StateFolderError},
};

/// The end of the worker's grace period, in which the rank uploads what it has; before, its ring may go on without it: it takes its step to the end.
const KEEP_LIMIT: Duration = Duration::from_secs(8);
/// And after both, for saying how it ended.
const SAY_LIMIT: Duration = Duration::from_secs(2);

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
    /// A secured cluster does not let it in.
    #[error(transparent)]
    Membership(Box<MembershipError>),
    /// A port that cannot be served.
    #[error(transparent)]
    Port(Box<ServerError>),
    /// The advertised address.
    #[error(transparent)]
    Advertise(#[from] AdvertiseError),
    /// The library that computes.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The metrics' registry.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The rings' thread.
    #[error("the thread of the rings cannot be started: {0}")]
    RingThread(#[source] io::Error),
    /// The cache.
    #[error("cache: {0}")]
    Cache(#[source] Box<contents::Error>),
    /// The coordinator's address.
    #[error("coordinator.url: {0}")]
    Coordinator(#[source] tonic::transport::Error),
    /// A server ended.
    #[error("the {0} server ended: {1}")]
    Server(&'static str, String),
    /// The cloud's metadata service.
    #[error("cloud: {0}")]
    Cloud(#[from] Trouble),
    /// The exporter of spans.
    #[error(transparent)]
    Traces(#[from] ringtune_traces::Error),
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
        match self {
            Self::Membership(error) => error.is_usage(),
            Self::Settings(_)
            | Self::Traces(_)
            | Self::Advertise(AdvertiseError::Malformed { .. } | AdvertiseError::UnknownInterface { .. })
            | Self::StateFolder(
                StateFolderError::Lock(StateLockError::Taken { .. }) | StateFolderError::OtherWorker { .. },
            ) => true,
            _ => false,
        }
    }
}

impl From<MembershipError> for Error {
    fn from(error: MembershipError) -> Self {
        Self::Membership(Box::new(error))
    }
}

impl From<ServerError> for Error {
    fn from(error: ServerError) -> Self {
        Self::Port(Box::new(error))
    }
}

/// How a worker is started.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// As every daemon.
    pub launch: Launch,
    /// A token for the cluster that it is to join.
    pub token: Option<JoinToken>,
}

impl From<Launch> for Start {
    fn from(launch: Launch) -> Self {
        Self { launch, token: None }
    }
}

/// Runs a worker until `shutdown`, on an engine with the threads that the settings or the machine have.
pub async fn run(
    settings: Settings,
    start_as: Start,
    shutdown: Shutdown,
    start: StartEngine,
) -> Result<(), Error> {
    settings.validate()?;
    let node = detect().await?;
    let count = default_threads(&node, &settings.compute);
    let portion = node.cores.portion(settings.compute.share());
    // Until the end, so that no other worker's threads come to these cores.
    let claim = Claim::take(Wish { portion: &portion, threads: count, quota: node.quota });
    log_place(claim.place(), count);
    let threads = Threads { count, processors: claim.place().processors() };
    run_with(settings, start_as, shutdown, move || start(threads)).await
}

fn log_place(place: &CoreClaim, threads: usize) {
    info!(threads, "computes on {place}");
    if place.is_contended() {
        warn!(
            "workers of this machine wait for each other's threads: give each a part of the cores (--share 1/2 and --share 2/2, \
             or taskset), or fewer threads (--threads)"
        );
    }
}

/// Runs a worker on any engine until `shutdown`. The engine is started once nothing else can go wrong cheaply.
pub async fn run_with(
    settings: Settings,
    start_as: impl Into<Start>,
    shutdown: Shutdown,
    start_engine: impl FnOnce() -> Result<EngineHandle, EngineError> + Send + 'static,
) -> Result<(), Error> {
    keep_blocks();
    // 1. What can be refused at once.
    let Start { launch, token } = start_as.into();
    settings.validate()?;
    let url = settings.coordinator_address()?.to_string();
    let (brought, certified) = membership::brought_worker(&settings).await?.unzip();
    let state_dir = settings.storage.state_dir.clone();
    let state = tokio::task::spawn_blocking(move || StateFolder::open(&state_dir, certified)).await??;
    let about = About { service: "ringtune-worker", instance: state.worker().to_string() };
    let (tracer, exporter) = ringtune_traces::start(&settings.traces, &about)?;
    let grpc = listen::bind("grpc.listen", settings.grpc.listen, launch.free_ports).await?;
    let http = listen::bind("http.listen", settings.http.listen, launch.free_ports).await?;
    let (grpc_address, http_address) = (address_of(&grpc)?, address_of(&http)?);
    let advertised = Advertised::new(&settings, grpc_address);
    let address = advertised.address().await?;
    warn_of_the_network(&settings);
    // 2. A place in the cluster, as long as it takes.
    let entering = Entering { settings: &settings, worker: state.worker(), token, brought };
    let notifier = launch.notifier.clone();
    let _stopping =
        AbortOnDropHandle::new(tokio::spawn(tell_of_the_end(notifier.clone(), shutdown.soft.clone())));
    let left = CancellationToken::new();
    let cloud = Cloud::of(settings.cloud.provider, settings.cloud.endpoint())?;
    let zone = Zone::of(cloud.clone());
    let watching = cloud
        .map(|cloud| AbortOnDropHandle::new(tokio::spawn(cloud.watch(shutdown.soft.clone(), left.clone()))));
    notifier.status(&format!("gets its place in the cluster of {url}"));
    let membership = tokio::select! {
        entered = membership::enter(entering) => entered?,
        () = shutdown.soft.cancelled() => return Ok(()),
        () = passed(settings.idle_limit()) => {
            warn!("no coordinator let it in for as long as it may be idle: ending");
            return Ok(());
        }
    };
    let trust = membership.as_ref().map(Membership::trust).cloned();
    // 3. The engine, and what it is.
    let node = detect().await?;
    let engine = tokio::task::spawn_blocking(start_engine).await??;
    let identity = engine.identity().await?;
    let threads = default_threads(&node, &settings.compute);
    log_start(&node, &identity, threads, &address);
    // 4. The shared parts.
    let metrics = Arc::new(Metrics::new()?);
    metrics.show_home(trust.clone(), state.work_folder());
    let ring_thread = RingThread::start().map_err(Error::RingThread)?;
    let ring_options = RingOptions {
        peer_timeout: settings.peer_timeout(),
        trust: trust.clone(),
        local_socket: settings.ring.local_sockets.then(|| state.ring_socket()),
        shared_memory: settings.ring.shared_memory,
        connections: settings.ring.connections,
        runtime: Some(ring_thread.handle().clone()),
    };
    let rings = Rings::new(ring_options, Arc::clone(&metrics));
    let artifacts = ArtifactClient::new(&url, trust.as_ref()).map_err(Error::Coordinator)?;
    let started =
        Started { engine: &engine, identity: &identity, artifacts, rings: &rings, metrics: &metrics, tracer };
    let context = context(&settings, &state, started)?;
    // 5. Servers.
    let end_servers = CancellationToken::new();
    let _end_servers = end_servers.clone().drop_guard();
    let openings = Handle::current();
    let port = |listener| Port {
        listener,
        trust: trust.clone(),
        metrics: Arc::clone(&metrics),
        openings: openings.clone(),
    };
    let ends = || end_servers.clone().cancelled_owned();
    let capabilities = capabilities(&node, &identity, threads);
    let about = probe::About {
        worker: state.worker(),
        host_name: node.host_name.clone(),
        advertised: advertised.clone(),
        capabilities: capabilities.clone(),
        zone,
    };
    // The connections that it accepts are read where the rings are.
    let grpc = ring_thread.adopt(grpc).map_err(Error::Announce)?;
    let serving = servers::grpc(port(grpc), rings, about, ends());
    let grpc_server = ring_thread.handle().spawn(ring_thread.handle().spawn(serving).await??);
    let http_server = tokio::spawn(servers::pages(port(http), ends())?);
    if launch.announce {
        listen::announce(grpc_address, http_address, &state.worker().to_string()).map_err(Error::Announce)?;
    }
    info!(grpc = %grpc_address, http = %http_address, worker = %state.worker(), "listening");
    // A coordinator that is not there yet is no reason to be started again.
    notifier.ready();
    // 6. The session, until the end.
    let following = membership.as_ref().map(Membership::following);
    let _keeping =
        membership.map(|membership| AbortOnDropHandle::new(tokio::spawn(membership.keep(launch.reread))));
    let link = LinkOptions {
        url,
        following,
        worker: state.worker(),
        incarnation: state.incarnation(),
        host_name: node.host_name.clone(),
        advertised,
        capabilities,
        labels: settings.worker.labels(),
        metrics: Arc::clone(&metrics),
    };
    let options = SessionOptions {
        link,
        metrics,
        leave_limit: settings.grace() - KEEP_LIMIT - SAY_LIMIT,
        keep_limit: KEEP_LIMIT,
        idle_limit: settings.idle_limit(),
        rings: context.rings.clone(),
        orphaned: shutdown.orphaned.clone(),
        notifier,
        engine: engine.activity().clone(),
    };
    let (end, hung) = (shutdown.soft.child_token(), context.hung.clone());
    let session = session::run(options, context, end.clone());
    let ended = tokio::select! {
        () = drained(session, &end, &shutdown, settings.grace()) => Ok(()),
        () = ended_by_hanging(&hung, &end) => Ok(()),
        ended = grpc_server => Err(Error::Server("gRPC", outcome(ended))),
        ended = http_server => Err(Error::Server("HTTP", outcome(ended))),
    };
    end_servers.cancel();
    left.cancel();
    let finishing = async {
        exporter.finish().await;
        if let Some(watching) = watching {
            // It has a limit of its own; a cloud that is not told waits longer.
            let _ = watching.await;
        }
    };
    tokio::select! {
        () = finishing => (),
        () = shutdown.hard.cancelled() => (),
    }
    if hung.is_cancelled() {
        return Err(Error::Hung);
    }
    // 7. libtorch is not to be pulled from under its own feet: give a running step the time that is left.
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

/// The service manager need not wait for the end to know that it comes.
async fn tell_of_the_end(notifier: Notifier, end: CancellationToken) {
    end.cancelled().await;
    notifier.stopping();
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

/// Warns of network settings that may not be meant.
fn warn_of_the_network(settings: &Settings) {
    let SecuritySettings { insecure, .. } = settings.security;
    let (grpc, http) = (settings.grpc.listen, settings.http.listen);
    if insecure && !(grpc.ip().is_loopback() && http.ip().is_loopback()) {
        warn!(
            %grpc, %http,
            "--insecure: nothing is encrypted, and nobody is asked who they are; whoever reaches these ports may do everything"
        );
    }
    // No error: for jobs of one worker all is well, and which jobs come nobody knows yet.
    if !settings.is_exposed() && settings.coordinator_address().is_ok_and(|address| !address.is_loopback()) {
        warn!(
            %grpc,
            "the coordinator is on another machine, and this worker listens on loopback alone: workers of other \
             machines cannot reach it, and jobs of more than one worker fail here; give --listen, as in \
             --listen 0.0.0.0:7080, unless all jobs have world_size = 1"
        );
    }
}

/// The parts of a worker that run by the time its ranks get their context.
struct Started<'a> {
    engine: &'a EngineHandle,
    identity: &'a EngineIdentity,
    artifacts: ArtifactClient,
    rings: &'a Rings,
    metrics: &'a Arc<Metrics>,
    tracer: Tracer,
}

fn context(settings: &Settings, state: &StateFolder, started: Started<'_>) -> Result<Context, Error> {
    let Started { engine, identity, artifacts, rings, metrics, tracer } = started;
    let environment = settings.cloud.environment();
    let rules = settings.access_rules(&environment);
    // Jobs that want a model of a hub are told why there is none.
    let hub = hub_endpoint(&environment).unwrap_or_default();
    Ok(Context {
        engine: engine.clone(),
        artifacts,
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
        tracer,
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
async fn drained(
    session: impl Future<Output = ()>,
    end: &CancellationToken,
    shutdown: &Shutdown,
    limit: Duration,
) {
    let bound = async {
        end.cancelled().await;
        tokio::time::sleep(limit).await;
        warn!("the drain took longer than {} s", limit.as_secs());
    };
    tokio::select! {
        () = session => (),
        () = bound => (),
        () = shutdown.hard.cancelled() => (),
    }
}

/// Returns after that time; never, without one.
async fn passed(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Ends the session once the engine hangs; never ends itself.
async fn ended_by_hanging(hung: &CancellationToken, end: &CancellationToken) {
    hung.cancelled().await;
    error!("the engine hangs: this worker ends");
    end.cancel();
    std::future::pending().await
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
