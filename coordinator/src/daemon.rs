//! The daemon: puts the parts together, in the order in which they can fail, and ends them.

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use ringtune_proto::v1;
use ringtune_security::ListenerError;
use ringtune_shared::{
    daemon::{
        lifecycle::{DRAIN_LIMIT, Shutdown},
        listen::{self, Launch, ListenError},
        settings::SettingsError,
        state_lock::StateLockError,
    },
    version::VERSION,
};
use ringtune_traces::{About, Exporter};
use tokio::{
    net::TcpListener,
    task::{JoinError, JoinHandle},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    access::{
        Access,
        table::{self, TableError},
    },
    contents::{Limits, RoomLimits},
    core,
    disk::Disk,
    grpc, host_names, http, manager,
    metrics::Metrics,
    network::{
        self,
        authority::{Pki, PkiError},
    },
    open_files,
    opening::{self, Opened, in_database},
    orphan,
    quotas::Quotas,
    reload::{Changing, loop_limits, owner_limits},
    service,
    settings::Settings,
    state_folder::StateFolder,
    store::{self, access::AccessStore as _},
};

/// Waits in the queue that metrics show.
const LONGEST_WAITS: usize = 100;

/// Why a coordinator does not start, or ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Values out of range.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The state folder.
    #[error(transparent)]
    StateFolder(#[from] StateLockError),
    /// What the state folder keeps does not belong together, is damaged, or fails.
    #[error(transparent)]
    Opening(#[from] opening::Error),
    /// The database turned out to be damaged while it was in use.
    #[error("the database {} is damaged, as the log says{}", .0.display(), opening::remedy(&store::Error::Corrupt(String::new())))]
    Damaged(PathBuf),
    /// The ports.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The CA, or certificates from elsewhere.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// TLS, or a port that does not accept.
    #[error(transparent)]
    Accept(#[from] ListenerError),
    /// The metrics' registry.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The gRPC server.
    #[error(transparent)]
    Grpc(#[from] grpc::Error),
    /// Something is served of which nobody said who may have it.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The API for browsers.
    #[error(transparent)]
    Web(#[from] ringtune_web::Error),
    /// Where spans are sent.
    #[error(transparent)]
    Traces(#[from] ringtune_traces::Error),
    /// Signals, stdin or stdout.
    #[error("the process's signals, stdin or stdout: {0}")]
    Process(#[source] io::Error),
    /// The store failed for too long.
    #[error("nothing could be stored for too long (a full disk? the log says why); what was stored is safe")]
    CannotStore,
    /// A part of the coordinator died.
    #[error("a part of the coordinator ended unexpectedly: {0}")]
    Task(#[from] JoinError),
}

impl Error {
    /// Another start finds the same: somebody has to put the state folder in order first.
    pub fn needs_repair(&self) -> bool {
        match self {
            Self::Opening(error) => error.needs_repair(),
            Self::Damaged(_) | Self::Pki(PkiError::Lost(_)) => true,
            _ => false,
        }
    }

    /// The user has to change a flag or a setting: exit code 2.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Settings(_) | Self::Traces(_) | Self::StateFolder(StateLockError::Taken { .. }) => true,
            Self::Pki(error) => error.is_usage(),
            _ => false,
        }
    }
}

/// A coordinator that listens.
pub struct Daemon {
    grpc_address: SocketAddr,
    http_address: SocketAddr,
    servers: Servers,
    readiness: http::Readiness,
    shutdown: Shutdown,
    damage: Damage,
    pki: Option<Pki>,
    changing: Changing,
    exporter: Exporter,
    /// Of what the service manager hears.
    telling: JoinHandle<()>,
    /// Its lock goes last.
    _state: StateFolder,
}

impl Daemon {
    /// Starts a coordinator, which serves from then on.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn start(settings: Settings, launch: Launch, shutdown: Shutdown) -> Result<Self, Error> {
        // 1. What can be refused at once.
        settings.validate()?;
        table::check_http(http::routes())?;
        open_files::raise(&settings.limits);
        let state_dir = settings.storage.state_dir.clone();
        let state = tokio::task::spawn_blocking(move || StateFolder::open(&state_dir)).await??;
        let grpc_listener = listen::bind("grpc.listen", settings.grpc.listen, launch.free_ports).await?;
        let http_listener = listen::bind("http.listen", settings.http.listen, launch.free_ports).await?;
        let (grpc_address, http_address) = (address_of(&grpc_listener)?, address_of(&http_listener)?);
        let database = state.database();
        let Opened { store, contents } = opening::open(&state, limits_of(&settings)).await?;
        let (damage, store) = (store.damage(), Arc::new(store));
        // Those that have expired too: whoever has one trusts no other authority.
        let signed = store.in_use(core::Time(0)).await.map_err(in_database(&database))?;
        let addresses = [grpc_address, http_address];
        let pki = network::open(&settings, &state, &addresses, !signed.is_empty()).await?;
        let host = host_names::of_this_host();
        let about = About { service: "ringtune-coordinator", instance: host.clone().unwrap_or_default() };
        let (tracer, exporter) = ringtune_traces::start(&settings.traces, &about)?;
        // 2. What was kept.
        let metrics = Metrics::new()?;
        if let Some(pki) = &pki {
            metrics.show_certificate(pki.trust());
        }
        // 3. The state, and its servers.
        let options = options(&settings);
        let access = Access::start(pki.as_ref(), store.clone(), metrics.clone(), &settings.limits).await;
        let access = access.map_err(in_database(&database))?;
        let quotas = match &pki {
            Some(_) => Quotas::new(store.clone(), owner_limits(&settings.limits), metrics.clone()),
            None => Quotas::none(),
        };
        let notifier = launch.notifier.clone();
        let (handle, state_loop) = service::start(service::Settings {
            options,
            store,
            metrics: metrics.clone(),
            notifier,
            tracer: tracer.clone(),
        })
        .await
        .map_err(in_database(&database))?;
        let snapshots = handle.snapshots();
        let (queue, clock) = (snapshots.clone(), handle.clock());
        metrics.show_waits(move || queue.borrow().longest_waits(clock.now(), LONGEST_WAITS));
        tokio::spawn(orphan::end_without_workers(snapshots.clone(), shutdown.clone()));
        let changing = Changing { access: access.clone(), quotas: quotas.clone(), jobs: handle.limits() };
        let readiness = http::Readiness::default();
        let end = shutdown.soft.clone();
        let (limits, pki_of_ports) = (&settings.limits, pki.as_ref());
        let grpc_listener = network::listen::grpc(grpc_listener, pki_of_ports, limits, metrics.refusals())?;
        let http_listener = network::listen::http(http_listener, pki_of_ports, limits, metrics.refusals())?;
        if let Some(pki) = &pki {
            tokio::spawn(network::keeper::keep(pki.clone(), launch.reread.clone(), end.clone()));
            tokio::spawn(network::evictions::watch(pki.clone(), handle.clone(), end.clone()));
        }
        let room = contents.clone();
        let services = grpc::Services::new(grpc::Options {
            handle,
            contents,
            access: access.clone(),
            quotas,
            submitter_priority: settings.queue.submitter_priority,
            metrics: metrics.clone(),
            tracer,
            welcome: welcome(&settings),
            call_limit: Duration::from_secs_f64(settings.limits.call_seconds),
            calls_per_connection: settings.limits.calls_per_connection,
            pki: pki.clone(),
            idle_limit: Duration::from_secs_f64(settings.limits.idle_seconds),
            shutdown: end.clone(),
        })
        .await?;
        let disk = Disk::look(room, state.contents(), settings.storage.free_bytes, metrics.clone()).await;
        tokio::spawn(disk.watch(shutdown.soft.clone()));
        let http_server = tokio::spawn(http::serve(
            http_listener,
            http::Options {
                metrics,
                readiness: readiness.clone(),
                scrapes: services.scrapes(),
                access,
                names: network::names(&settings, pki.as_ref()),
                web: ringtune_web::Options {
                    calls: services.calls(),
                    secured: pki.is_some(),
                    version: VERSION,
                    methods: table::calls_of,
                    shutdown: end,
                },
            },
        ));
        let grpc_server = tokio::spawn(services.serve(grpc_listener));
        readiness.set(true);
        if launch.announce {
            listen::announce(grpc_address, http_address, "").map_err(Error::Process)?;
        }
        info!(grpc = %grpc_address, http = %http_address, version = VERSION, "listening");
        launch.notifier.ready();
        let telling = tokio::spawn(manager::tell(launch.notifier, snapshots, shutdown.soft.clone()));
        let servers = Servers { grpc: grpc_server, http: http_server, state_loop };
        let damage = Damage { found: damage, database };
        Ok(Self {
            grpc_address,
            http_address,
            servers,
            readiness,
            shutdown,
            damage,
            pki,
            changing,
            exporter,
            telling,
            _state: state,
        })
    }

    /// What changes when the settings are read again.
    pub fn changing(&self) -> Changing {
        self.changing.clone()
    }

    /// Who signs and whose certificates are believed, where the ports speak TLS.
    pub fn pki(&self) -> Option<&Pki> {
        self.pki.as_ref()
    }

    /// Where clients and workers call.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc_address
    }

    /// Where metrics and health are read.
    pub fn http_address(&self) -> SocketAddr {
        self.http_address
    }

    /// Waits until the shutdown that it was started with, and for what was under way then.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn ended(self) -> Result<(), Error> {
        let (damage, soft) = (self.damage, self.shutdown.soft.clone());
        let watching = damage.found.clone();
        tokio::spawn(async move {
            tokio::select! {
                // What is under way ends as after a signal.
                () = watching.cancelled() => soft.cancel(),
                () = soft.cancelled() => {}
            }
        });
        let ended = ended(self.servers, &self.readiness, &self.shutdown).await;
        let ended = if damage.found.is_cancelled() { Err(Error::Damaged(damage.database)) } else { ended };
        // One that has nothing to do would be gone before it is said that it ends.
        if self.shutdown.soft.is_cancelled() {
            let _ = self.telling.await;
        }
        tokio::select! {
            () = self.exporter.finish() => ended,
            () = self.shutdown.hard.cancelled() => ended,
        }
    }
}

/// Whether the database turned out to be damaged.
struct Damage {
    found: CancellationToken,
    database: PathBuf,
}

struct Servers {
    grpc: JoinHandle<Result<(), grpc::Error>>,
    http: JoinHandle<Result<(), ringtune_web::Error>>,
    state_loop: JoinHandle<()>,
}

/// Waits for the servers, after the first signal for a bounded time, after the second not at all.
async fn ended(mut servers: Servers, readiness: &http::Readiness, shutdown: &Shutdown) -> Result<(), Error> {
    let bound = async {
        shutdown.soft.cancelled().await;
        readiness.set(false);
        tokio::time::sleep(DRAIN_LIMIT).await;
        warn!("calls were still under way after {} s", DRAIN_LIMIT.as_secs());
    };
    let served = async {
        // Each ends by itself only when it is broken; then the other has no use either.
        tokio::select! {
            result = &mut servers.grpc => {
                result??;
                // The last handle went with the gRPC server, so that the loop ends once it has stored everything.
                servers.state_loop.await?;
                Ok(())
            }
            result = &mut servers.state_loop => {
                result?;
                // The gRPC server's handles are its own: without a shutdown only the store ends the loop.
                if shutdown.soft.is_cancelled() { Ok(()) } else { Err(Error::CannotStore) }
            }
            result = broken_http(servers.http, shutdown) => result,
        }
    };
    tokio::select! {
        result = served => result,
        () = bound => Ok(()),
        () = shutdown.hard.cancelled() => Ok(()),
    }
}

/// An HTTP server that ends after the first signal did what it was asked to.
async fn broken_http(
    server: JoinHandle<Result<(), ringtune_web::Error>>,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    server.await??;
    if shutdown.soft.is_cancelled() {
        std::future::pending::<()>().await;
    }
    Ok(())
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, Error> {
    listener.local_addr().map_err(Error::Process)
}

/// What the contents accept, by the settings.
pub fn limits_of(settings: &Settings) -> Limits {
    let storage = &settings.storage;
    Limits {
        content_bytes: settings.limits.upload_bytes,
        uploads: settings.limits.uploads,
        room: RoomLimits { all_contents: storage.content_bytes, left_free: storage.free_bytes },
        trash_days: storage.trash_days,
    }
}

fn options(settings: &Settings) -> core::Options {
    // Settings are 0.01 seconds to a year.
    let milliseconds = |seconds: f64| (seconds * 1000.0) as i64;
    core::Options {
        session_timeout: milliseconds(settings.session.timeout_seconds),
        recovery: milliseconds(settings.session.recovery_seconds),
        spare: milliseconds(settings.ring.spare_seconds),
        fairness: core::Fairness {
            half_life: milliseconds(settings.queue.half_life_seconds),
            weights: settings.queue.weights(),
        },
        preempt_difference: settings.queue.preempt_difference,
        longest_wait: milliseconds(settings.queue.longest_wait_seconds),
        limits: loop_limits(&settings.limits),
        artifacts_per_job: settings.limits.artifacts_per_job,
        ..core::Options::default()
    }
}

fn welcome(settings: &Settings) -> v1::Welcome {
    v1::Welcome {
        coordinator_version: VERSION.to_owned(),
        heartbeat_seconds: settings.session.heartbeat_seconds,
        session_timeout_seconds: settings.session.timeout_seconds,
        // What the two agree on comes with each hello.
        protocol: 0,
        features: Vec::new(),
    }
}
