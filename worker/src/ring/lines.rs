//! The ways to other workers, and how the next rank is dialled.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::Uri;
use ringtune_proto::v1;
use ringtune_security::{ConnectError, Connector, Invitation, Outgoing as Connected, Server, Trust};
use ringtune_shared::{ids::WorkerId, ring::Place, tasks};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};
use tracing::debug;

use super::{
    call::{self, Call, Http2, Unconnected},
    measure::{self, Connections},
    memory::{Offer, Sending},
    outgoing::Outgoing,
    stripes::{StreamCount, Trial},
    wire::{self, MOST_FRAME_BYTES, MOST_SEGMENT_BYTES, WINDOW_BYTES},
};
use crate::{
    error_chain::{cause_of, error_chain},
    http::Metrics,
};

/// For one attempt to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// For the answer of one that is only to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// At least: see [`keep_alive`].
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));

/// The next rank to dial, and as which rank.
#[derive(Debug)]
pub(super) struct NextRank {
    /// Worker of that rank.
    pub(super) worker: WorkerId,
    /// host:port.
    pub(super) address: String,
    /// The rank that dials.
    pub(super) place: Place,
    /// Of RingService.
    pub(super) protocol: u32,
    /// Number of streams through its port.
    pub(super) wanted: StreamCount,
    /// Counts how often it is dialled.
    pub(super) attempt: u64,
    pub(super) lines: Lines,
    pub(super) metrics: Arc<Metrics>,
}

/// Interval of HTTP/2's pings on a connection, and timeout of an answer. That is for connections without a
/// ring behind them, as those that wait for a seat; a ring has its own signs of life. So it must be more patient than any
/// ring, or a neighbour that is only slow would be lost by it.
pub(super) fn keep_alive(peer_timeout: Duration) -> (Duration, Duration) {
    (KEEP_ALIVE.0.max(peer_timeout), KEEP_ALIVE.1.max(peer_timeout * 2))
}

/// Opens connections to other workers.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    pub(super) peer_timeout: Duration,
    /// In a secured cluster.
    pub(super) trust: Option<Trust>,
    /// Workers of this machine are reached through their local sockets, where they have some. None: they are not.
    pub(super) locally: Option<Locally>,
    /// Runtime of the connections.
    pub(super) runtime: Handle,
}

/// Use of a local socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Locally {
    /// Large payloads lie in memory that both sides share.
    pub(super) shared_memory: bool,
}

/// The way to one of them.
#[derive(Debug)]
pub(super) struct Line {
    exchange: Uri,
    invite: Uri,
    measure: Uri,
    connector: Connector,
    locally: Option<Locally>,
    keep_alive: (Duration, Duration),
    runtime: Handle,
}

impl Lines {
    /// To a worker; in a secured cluster it has to be that worker.
    ///
    /// # Errors
    /// Its address is none.
    pub(super) fn to(&self, worker: WorkerId, address: &str) -> Result<Line, String> {
        let (scheme, connector) = match &self.trust {
            None => ("http", Connector::plain()),
            Some(trust) => ("https", Connector::to(trust.clone(), Server::Worker(worker.0))),
        };
        let url = |path| Uri::builder().scheme(scheme).authority(address).path_and_query(path).build();
        let url = |path| url(path).map_err(|error| error_chain(&error));
        let (exchange, invite, measure) = (url(call::EXCHANGE)?, url(call::INVITE)?, url(call::MEASURE)?);
        let keep_alive = keep_alive(self.peer_timeout);
        let (locally, runtime) = (self.locally, self.runtime.clone());
        Ok(Line { exchange, invite, measure, connector, locally, keep_alive, runtime })
    }
}

impl Line {
    /// A connection for calls, with a ring's flow control. It stays in the runtime in which it was made.
    ///
    /// # Errors
    /// There is none; or the runtime has ended.
    pub(super) async fn connect(&self) -> Result<Channel, Unconnected> {
        let (interval, limit) = self.keep_alive;
        let endpoint = Endpoint::from(self.exchange.clone())
            .connect_timeout(CONNECT_LIMIT)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_frame_size(MOST_FRAME_BYTES)
            .http2_keep_alive_interval(interval)
            .keep_alive_timeout(limit);
        let connector = self.connector.clone();
        let connecting = async move { endpoint.connect_with_connector(connector).await };
        let connected = AbortOnDropHandle::new(tasks::spawn_on(&self.runtime, connecting)).await;
        Ok(connected??)
    }

    /// Makes a connection, and has so many bytes answered.
    ///
    /// # Errors
    /// There is none, or nobody answers.
    pub(super) async fn reach(&self, bytes: usize) -> Result<Http2<Connected>, NoConnection> {
        let connection = self.connector.connect(&self.measure).await;
        let connection = connection.map_err(|error| NoConnection::of(&error))?;
        let mut http2 = Http2::begin(connection).await.map_err(|error| NoConnection::of(&error))?;
        let filler = wire::message(&v1::MeasureRequest { filler: vec![0; bytes] });
        match http2.measure(self.measure.clone(), filler, Instant::now(), ANSWER_LIMIT).await {
            Ok(_) => Ok(http2),
            // A worker that does not know the question, or does not answer it to everybody, is there.
            Err(status)
                if matches!(
                    status.code(),
                    Code::Unimplemented | Code::ResourceExhausted | Code::PermissionDenied
                ) =>
            {
                Ok(http2)
            }
            Err(status) => Err(NoConnection::of(&status)),
        }
    }

    /// Opens a ring's streams on connections of their own, which stay in the runtime of rings.
    async fn open(&self, wanted: StreamCount) -> Result<Opened, Unconnected> {
        let Self { exchange, invite, measure, connector, locally, keep_alive, runtime } = self;
        let (url, invite, measure) = (exchange.clone(), invite.clone(), measure.clone());
        let connector = connector.clone();
        let (locally, keep_alive) = (*locally, *keep_alive);
        let opening = async move {
            let connection = connector.connect(&url).await?;
            let is_here = connection.is_within_this_machine();
            let mut http2 = Http2::begin(connection).await?;
            if let Some(how) = locally.filter(|_| is_here) {
                match through_the_door(&mut http2, invite, &connector, how).await {
                    Ok((local, memory)) => {
                        let way = if memory.is_some() { Way::Memory } else { Way::Local };
                        let calls = vec![local.exchange(url, keep_alive).await?];
                        return Ok(Opened { calls, way, memory, trial: Trial::default() });
                    }
                    Err(reason) => {
                        debug!(reason, "there is no way through a local socket: the port is taken")
                    }
                }
            }
            let way = measure::Way { connector: &connector, url: measure };
            let Connections { open, trial } = way.connections(http2, wanted).await?;
            let mut calls = Vec::new();
            for http2 in open {
                calls.push(http2.exchange(url.clone(), keep_alive).await?);
            }
            Ok::<_, Unconnected>(Opened { calls, way: Way::Tcp, memory: None, trial })
        };
        AbortOnDropHandle::new(tasks::spawn_on(runtime, opening)).await?
    }
}

/// A ring's streams that are open.
struct Opened {
    /// At least one.
    calls: Vec<Call>,
    way: Way,
    /// The memory handed over with the one connection through a local socket.
    memory: Option<Sending>,
    /// Why there are so many.
    trial: Trial,
}

/// The streams to the next rank, and why there are so many.
#[derive(Debug)]
pub(super) struct Dialled {
    /// In their order, at least one; nothing was sent on them but their openings.
    pub(super) streams: Vec<Outgoing>,
    pub(super) trial: Trial,
}

/// A connection through the local socket of the worker on the other side, if it has one that is this side's too; and memory that
/// both share, if the system gives some.
async fn through_the_door(
    http2: &mut Http2<Connected>,
    invite: Uri,
    connector: &Connector,
    how: Locally,
) -> Result<(Http2<Connected>, Option<Sending>), String> {
    let answer = http2.ask(invite, &v1::InviteRequest {}).await;
    let v1::InviteResponse { path, secret } = answer.map_err(|status| status.message().to_owned())?;
    let secret = <[u8; 32]>::try_from(secret.as_ref()).map_err(|_| "its secret is none".to_owned())?;
    let invitation = Invitation { path: path.into(), secret };
    let made = how.shared_memory.then(Sending::make).transpose().unwrap_or_else(|error| {
        debug!(%error, "there is no memory to share with a neighbour: all goes through its local socket");
        None
    });
    let (memory, offer) = made.unzip();
    let files = offer.as_ref().map(Offer::files);
    let files = files.as_ref().map_or(&[][..], <[_; 2]>::as_slice);
    let connection = connector.connect_locally(&invitation, files).await;
    let connection = connection.map_err(|error| error_chain(&error))?;
    let http2 = Http2::begin(connection).await.map_err(|error| error.to_string())?;
    Ok((http2, memory))
}

/// Through what a stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The other worker's port.
    Tcp,
    /// Its local socket.
    Local,
    /// As above, with large payloads in shared memory.
    Memory,
}

impl Way {
    /// As metrics name it.
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Local => "local",
            Self::Memory => "memory",
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) struct NoConnection {
    pub(super) reason: String,
    pub(super) why: Why,
}

/// The consequence for the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The host is there, and nobody listens: the process has ended.
    NobodyListens,
    /// Somebody is there, and by the clocks of the two a certificate is not good: no waiting mends that.
    Hopeless,
    /// It may be better by then.
    Other,
}

impl NoConnection {
    fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        let why = match cause_of::<ConnectError>(error) {
            Some(ConnectError::Unreachable { cause, .. })
                if cause.kind() == std::io::ErrorKind::ConnectionRefused =>
            {
                Why::NobodyListens
            }
            Some(error) if error.is_about_clocks() => Why::Hopeless,
            // A new root, or somebody's new certificate, is known to one after the other.
            None | Some(_) => Why::Other,
        };
        Self { reason: error_chain(error), why }
    }
}

impl NextRank {
    /// The way to it.
    ///
    /// # Errors
    /// Its address is none.
    pub(super) fn line(&self) -> Result<Line, String> {
        self.lines.to(self.worker, &self.address)
    }

    /// Opens streams to it. What it makes of them comes only when one has ended: see [`Outgoing::ended`].
    ///
    /// # Errors
    /// No connection, and why.
    pub(super) async fn dial(&self, line: &Line) -> Result<Dialled, NoConnection> {
        let Opened { calls, way, mut memory, trial } =
            line.open(self.wanted).await.map_err(|error| NoConnection::of(error.cause()))?;
        let place = self.place;
        let mut open = v1::RingOpen {
            job_id: place.job.to_string(),
            epoch: place.epoch.0,
            rank: i32::try_from(place.rank).unwrap_or(i32::MAX),
            world_size: i32::try_from(place.world_size).unwrap_or(i32::MAX),
            protocol: self.protocol,
            max_segment_bytes: MOST_SEGMENT_BYTES,
            stripes: u32::try_from(calls.len()).unwrap_or(u32::MAX),
            stripe: 0,
            attempt: self.attempt,
        };
        let mut streams = Vec::new();
        for call in calls {
            self.metrics.ring_streams.with_label_values(&[way.name()]).inc();
            let valid = line.connector.valid();
            let mut stream = Outgoing::new(call, memory.take(), valid, Arc::clone(&self.metrics));
            stream.begin(open.clone()).await.map_err(|error| NoConnection::of(&error))?;
            streams.push(stream);
            open.stripe += 1;
        }
        Ok(Dialled { streams, trial })
    }
}
