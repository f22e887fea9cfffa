//! The worker's two ports: the ring's, with health and reflection, and that of the pages.

use std::{future::Future, sync::Arc};

use axum::Router;
use ringtune_security::{
    CallRates, Clients, Limits, Listener, ListenerError, PageLimits, Protection, Protocols, Trust,
    serve_pages,
};
use tokio::{net::TcpListener, runtime::Handle};
use tonic::{server::NamedService, transport::Server};

use crate::{
    callers::{self, GuardCalls, PageGuard, TableError},
    error_chain::error_chain,
    http::{self, Metrics},
    probe::{About, ProbeServer},
    ring::{self, RingGrpc, RingServer, Rings},
};

/// Connections of the ring's port: a ring needs two of each member, and few others call a worker.
const MOST_CONNECTIONS: usize = 1024;
/// Calls that one connection may have open here: a neighbour has one.
const MOST_CALLS_A_CONNECTION: u32 = 32;
/// Calls of one caller to one port in a second, in the long run: a neighbour has a few dozen a ring, and probes one now and then.
const MOST_CALLS_A_SECOND: usize = 1000;
/// The headers of one call: names and values, and what HTTP/2 counts for each.
const MOST_HEADER_BYTES: u32 = 16 << 10;
/// Streams of one connection that were reset before they were served, and resets that the server sent because of errors of
/// the other side, in the whole life of the connection; who causes more is cut off.
const MOST_RESETS: (usize, usize) = (32, 1024);

/// The services of the gRPC port.
const HEALTH: &str = "grpc.health.v1.Health";
const REFLECTION: [&str; 2] =
    ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

/// Why a port is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its connections.
    #[error(transparent)]
    Listener(#[from] ListenerError),
    /// Somebody could call what nobody decided about.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The service that describes the others.
    #[error("reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A port that is bound, and whom its connections believe; no `trust`: nobody is asked who they are.
#[derive(Debug)]
pub(crate) struct Port {
    /// Bound.
    pub(crate) listener: TcpListener,
    /// Of a secured cluster.
    pub(crate) trust: Option<Trust>,
    /// Counts refusals.
    pub(crate) metrics: Arc<Metrics>,
    /// Runtime of handshakes: those of strangers take no time from the rings' thread.
    pub(crate) openings: Handle,
}

impl Port {
    /// Begins to accept.
    fn open(self, protocols: Protocols, limits: Limits) -> Result<Listener, ListenerError> {
        let protection = match self.trust {
            None => Protection::Plain,
            Some(trust) => Protection::Tls { trust, clients: Clients::Optional, protocols },
        };
        let address = self.listener.local_addr()?.ip();
        let limits = if address.is_loopback() { limits.for_loopback() } else { limits };
        let refusals = self.metrics.refusals.clone();
        Listener::start_with(&self.openings, self.listener, protection, limits, refusals)
    }
}

/// The gRPC port; it serves while what this gives is polled, until `end`.
///
/// # Errors
/// It cannot be opened. Later: the server ended.
pub(crate) async fn grpc(
    port: Port,
    rings: Rings,
    about: About,
    end: impl Future<Output = ()> + Send + 'static,
) -> Result<impl Future<Output = Result<(), String>> + Send + 'static, ServerError> {
    let ring_service = RingGrpc::NAME;
    let probe_service = <ringtune_proto::v1::probe_service_server::ProbeServiceServer<ProbeServer>>::NAME;
    callers::check_calls(&[ring_service, probe_service, HEALTH, REFLECTION[0], REFLECTION[1]])?;
    let guard =
        GuardCalls { metrics: Arc::clone(&port.metrics), rates: CallRates::per_second(MOST_CALLS_A_SECOND) };
    let limits = Limits { connections: MOST_CONNECTIONS, ..Limits::default() };
    let listener = port.open(Protocols::Http2, limits)?;
    rings.open_locally(&listener);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<RingGrpc>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(ringtune_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let (reflection_v1, reflection_v1alpha) = (reflection().build_v1()?, reflection().build_v1alpha()?);
    let (keep_alive_interval, keep_alive_timeout) = rings.keep_alive();
    let server = Server::builder()
        .concurrency_limit_per_connection(MOST_CALLS_A_CONNECTION as usize)
        .max_concurrent_streams(MOST_CALLS_A_CONNECTION)
        .http2_max_header_list_size(MOST_HEADER_BYTES)
        .http2_max_pending_accept_reset_streams(Some(MOST_RESETS.0))
        .http2_max_local_error_reset_streams(Some(MOST_RESETS.1))
        .max_frame_size(ring::MOST_FRAME_BYTES)
        .initial_stream_window_size(ring::WINDOW_BYTES)
        .initial_connection_window_size(ring::WINDOW_BYTES)
        .http2_keepalive_interval(Some(keep_alive_interval))
        .http2_keepalive_timeout(Some(keep_alive_timeout))
        .layer(guard)
        .add_service(health_service)
        .add_service(reflection_v1)
        .add_service(reflection_v1alpha)
        .add_service(ProbeServer::service(about, rings.clone()))
        .add_service(RingServer::service(rings));
    Ok(async move {
        let served = server.serve_with_incoming_shutdown(listener, end).await;
        served.map_err(|error| error_chain(&error))
    })
}

/// As above, for the pages.
///
/// # Errors
/// It cannot be opened. Later: the server ended.
pub(crate) fn pages(
    port: Port,
    end: impl Future<Output = ()> + Send + 'static,
) -> Result<impl Future<Output = Result<(), String>> + Send + 'static, ServerError> {
    let pages = http::pages();
    callers::check_pages(&pages.each_ref().map(|(path, _)| *path))?;
    let metrics = Arc::clone(&port.metrics);
    let routes = pages.into_iter().fold(Router::new(), |router, (path, page)| router.route(path, page));
    let guard =
        PageGuard { metrics: Arc::clone(&metrics), rates: CallRates::per_second(MOST_CALLS_A_SECOND) };
    let guard = axum::middleware::from_fn_with_state(guard, callers::guard);
    let routes = routes.layer(guard).with_state(metrics);
    let listener = port.open(Protocols::Http1, Limits::of_pages())?;
    Ok(async move {
        serve_pages(listener, routes, PageLimits::default(), end).await;
        Ok(())
    })
}
