//! The two halves of a rank's connection: a stream that it opens to the next rank, and one that the previous rank
//! opened here. Bulk goes from client to server only, one stream a connection.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ringtune_proto::v1::{self, ExchangeRequest, exchange_request::Part};
use ringtune_security::{ConnectError, Connector, Server, Trust, Validity};
use ringtune_shared::{
    ids::{Epoch, JobId, WorkerId},
    ring::{Frame, LinkBroken, Place, ReceiveHalf, SendHalf, Signal, Transport},
    tasks,
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    task::{JoinError, JoinHandle},
};
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use super::stream::{self, Incoming};
use crate::{
    error_chain::{cause_of, error_chain},
    http::Metrics,
};

/// Largest HTTP/2 frame: hyper writes one at a time, and 16 KiB, the default, costs 16 times the system calls.
pub const MOST_FRAME_BYTES: u32 = 1 << 20;
/// Bytes on the way of one stream and one connection: there is one stream a connection.
pub const WINDOW_BYTES: u32 = 4 << 20;
/// The largest payload of a chunk.
pub(super) const MOST_SEGMENT_BYTES: u32 = 1 << 20;
/// For one attempt to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// At least: see [`keep_alive`].
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));
/// Messages between the ring and the connection.
const QUEUED_MESSAGES: usize = 2;

/// A connected rank's transport.
#[derive(Debug)]
pub struct GrpcTransport {
    outgoing: Outgoing,
    incoming: IncomingStream,
}

impl GrpcTransport {
    /// Puts a dialled and an accepted stream together.
    pub(super) fn new(outgoing: Outgoing, incoming: IncomingStream) -> Self {
        Self { outgoing, incoming }
    }

    /// When the certificates of both connections are good; what is sooner over counts. None: without TLS.
    pub(super) fn valid(&self) -> Option<Validity> {
        let (out, into) = (self.outgoing.valid, self.incoming.valid);
        out.map(|out| out.sooner(into)).or(into)
    }
}

impl Transport for GrpcTransport {
    fn split(self: Box<Self>) -> (Box<dyn SendHalf>, Box<dyn ReceiveHalf>) {
        (Box::new(self.outgoing), Box::new(self.incoming))
    }
}

/// The stream to the next rank.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Gone once finished.
    messages: Option<mpsc::Sender<ExchangeRequest>>,
    call: JoinHandle<Result<(), Status>>,
    /// When the certificates of the connection are good.
    valid: Option<Validity>,
    metrics: Arc<Metrics>,
}

/// Whom a rank dials, and as what.
#[derive(Debug)]
pub(super) struct NextRank {
    /// Who has that rank.
    pub(super) worker: WorkerId,
    /// host:port.
    pub(super) address: String,
    /// The rank that dials.
    pub(super) place: Place,
    /// Of RingService.
    pub(super) protocol: u32,
    pub(super) lines: Lines,
    pub(super) metrics: Arc<Metrics>,
}

/// How a stream ended that the ring does not use yet.
#[derive(Debug)]
pub(super) enum Ended {
    /// The next rank has not taken its seat: later it may have.
    TooEarly(String),
    /// The next rank will not have it.
    Refused(String),
    /// The connection, or the next rank's own ring, is gone.
    Broken(String),
}

/// How often HTTP/2 asks whether a connection stands, and how long an answer may take. That is for connections without a
/// ring behind them, as those that wait for a seat; a ring has its own signs of life. So it must be more patient than any
/// ring, or a neighbour that is only slow would be lost by it.
pub(super) fn keep_alive(peer_timeout: Duration) -> (Duration, Duration) {
    (KEEP_ALIVE.0.max(peer_timeout), KEEP_ALIVE.1.max(peer_timeout * 2))
}

/// How other workers are called.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    pub(super) peer_timeout: Duration,
    /// In a secured cluster.
    pub(super) trust: Option<Trust>,
    /// Where connections are read and written.
    pub(super) runtime: Handle,
}

/// The way to one of them.
#[derive(Debug)]
pub(super) struct Line {
    endpoint: Endpoint,
    connector: Connector,
    runtime: Handle,
}

impl Lines {
    /// To a worker, with a ring's flow control; in a secured cluster it has to be that worker.
    ///
    /// # Errors
    /// Its address is none.
    pub(super) fn to(&self, worker: WorkerId, address: &str) -> Result<Line, String> {
        let (interval, limit) = keep_alive(self.peer_timeout);
        let (scheme, connector) = match &self.trust {
            None => ("http", Connector::plain()),
            Some(trust) => ("https", Connector::to(trust.clone(), Server::Worker(worker.0))),
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| error_chain(&error))?
            .connect_timeout(CONNECT_LIMIT)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_frame_size(MOST_FRAME_BYTES)
            .http2_keep_alive_interval(interval)
            .keep_alive_timeout(limit);
        Ok(Line { endpoint, connector, runtime: self.runtime.clone() })
    }
}

impl Line {
    /// A connection of its own. It stays in the runtime in which it was made.
    ///
    /// # Errors
    /// There is none; or the runtime has ended.
    pub(super) async fn connect(&self) -> Result<Channel, Unconnected> {
        let (endpoint, connector) = (self.endpoint.clone(), self.connector.clone());
        let connecting = async move { endpoint.connect_with_connector(connector).await };
        let connected = AbortOnDropHandle::new(tasks::spawn_on(&self.runtime, connecting)).await;
        Ok(connected??)
    }
}

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) enum Unconnected {
    Refused(#[from] tonic::transport::Error),
    Ended(#[from] JoinError),
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) struct NoConnection {
    pub(super) reason: String,
    pub(super) why: Why,
}

/// What that means for the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The host is there, and nobody listens: the process has ended.
    NobodyListens,
    /// Somebody is there, and one of the two does not believe the other.
    Disbelief,
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
            None
            | Some(
                ConnectError::Unreachable { .. }
                | ConnectError::Slow { .. }
                | ConnectError::Closed { .. }
                | ConnectError::Handshake { .. },
            ) => Why::Other,
            Some(_) => Why::Disbelief,
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

    /// Opens a stream to it. What it makes of that comes only when the stream has ended: see [`Outgoing::ended`].
    ///
    /// # Errors
    /// No connection, and why.
    pub(super) async fn dial(&self, line: &Line) -> Result<Outgoing, NoConnection> {
        let channel = line.connect().await.map_err(|error| NoConnection::of(&error))?;
        let (messages, queue) = mpsc::channel(QUEUED_MESSAGES);
        let place = self.place;
        let open = v1::RingOpen {
            job_id: place.job.to_string(),
            epoch: place.epoch.0,
            rank: i32::try_from(place.rank).unwrap_or(i32::MAX),
            world_size: i32::try_from(place.world_size).unwrap_or(i32::MAX),
            protocol: self.protocol,
            max_segment_bytes: MOST_SEGMENT_BYTES,
        };
        // There is room: the queue is new.
        let unsent = |error: mpsc::error::SendError<_>| NoConnection::of(&error);
        messages.send(request(Part::Open(open))).await.map_err(unsent)?;
        let call = tasks::spawn_on(&line.runtime, stream::call(channel, queue));
        let (valid, metrics) = (line.connector.valid(), Arc::clone(&self.metrics));
        Ok(Outgoing { messages: Some(messages), call, valid, metrics })
    }
}

fn request(part: Part) -> ExchangeRequest {
    ExchangeRequest { part: Some(part) }
}

impl Outgoing {
    /// Waits until the stream has ended, before anything was sent. Not to be called again after that.
    pub(super) async fn ended(&mut self) -> Ended {
        let ended = (&mut self.call).await;
        self.messages = None;
        match ended {
            Ok(Ok(())) => Ended::Broken("it ended the stream".to_owned()),
            Ok(Err(status)) => {
                let text = format!("{}: {}", status.code(), status.message());
                match status.code() {
                    Code::NotFound | Code::ResourceExhausted => Ended::TooEarly(text),
                    Code::FailedPrecondition
                    | Code::InvalidArgument
                    | Code::Unimplemented
                    | Code::PermissionDenied
                    | Code::Unauthenticated => Ended::Refused(text),
                    _ => Ended::Broken(text),
                }
            }
            Err(error) => Ended::Broken(error.to_string()),
        }
    }

    async fn push(&mut self, message: ExchangeRequest) -> Result<(), LinkBroken> {
        let Some(messages) = &self.messages else {
            return Err(LinkBroken("it was finished before".to_owned()));
        };
        let answer = tokio::select! {
            biased;
            // The call ends first only when the next rank refused or is gone.
            answer = &mut self.call => answer,
            sent = messages.send(message) => match sent {
                Ok(()) => return Ok(()),
                // The stream is closed a moment before the call says why.
                Err(_) => (&mut self.call).await,
            },
        };
        self.messages = None;
        Err(LinkBroken(match answer {
            Ok(Ok(())) => "it ended the stream".to_owned(),
            Ok(Err(status)) => format!("{}: {}", status.code(), status.message()),
            Err(error) => error.to_string(),
        }))
    }
}

#[async_trait]
impl SendHalf for Outgoing {
    async fn send(&mut self, signal: Signal) -> Result<(), LinkBroken> {
        let part = match signal {
            Signal::Frame(frame) => {
                self.metrics.exchange_sent_bytes.inc_by(frame.payload.len() as u64);
                Part::Chunk(v1::RingChunk {
                    epoch: frame.epoch.0,
                    collective: frame.collective,
                    hop: frame.hop,
                    segment: frame.segment,
                    payload: frame.payload,
                    checksum: frame.checksum,
                })
            }
            Signal::Pulse { epoch, .. } => Part::Pulse(v1::RingPulse { epoch: epoch.0 }),
        };
        self.push(request(part)).await
    }

    async fn finish(&mut self) -> Result<(), LinkBroken> {
        if self.messages.is_none() {
            return Ok(());
        }
        self.push(request(Part::Close(v1::RingClose {}))).await?;
        // The stream ends behind the close. The next rank answers when it has read that: until then this one stays,
        // for what it sent last goes with its process.
        self.messages = None;
        match (&mut self.call).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => Err(LinkBroken(format!("{}: {}", status.code(), status.message()))),
            Err(error) => Err(LinkBroken(error.to_string())),
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // Without a close before it, the stream's end tells the next rank that it is broken.
        if self.messages.take().is_some() {
            self.call.abort();
        }
    }
}

/// The stream from the previous rank, as its handler hands it over.
#[derive(Debug)]
pub struct IncomingStream {
    messages: Incoming,
    /// As its opening says.
    job: JobId,
    finished: bool,
    /// Tells the handler how the stream ended; dropping it says "given up".
    done: Option<oneshot::Sender<()>>,
    /// When the caller's certificate is good.
    valid: Option<Validity>,
    metrics: Arc<Metrics>,
}

impl IncomingStream {
    /// A stream whose opening has been read, and what tells the handler that it may answer. `valid`: when the caller's
    /// certificate is good.
    pub(super) fn new(
        messages: Incoming,
        job: JobId,
        valid: Option<Validity>,
        metrics: Arc<Metrics>,
    ) -> (Self, oneshot::Receiver<()>) {
        let (done, ended) = oneshot::channel();
        (Self { messages, job, finished: false, done: Some(done), valid, metrics }, ended)
    }

    fn signal(&self, part: Option<Part>) -> Result<Option<Signal>, LinkBroken> {
        match part {
            Some(Part::Chunk(chunk)) => {
                self.metrics.exchange_received_bytes.inc_by(chunk.payload.len() as u64);
                Ok(Some(Signal::Frame(Frame {
                    job: self.job,
                    epoch: Epoch(chunk.epoch),
                    collective: chunk.collective,
                    hop: chunk.hop,
                    segment: chunk.segment,
                    payload: chunk.payload,
                    checksum: chunk.checksum,
                })))
            }
            Some(Part::Pulse(pulse)) => Ok(Some(Signal::Pulse { job: self.job, epoch: Epoch(pulse.epoch) })),
            Some(Part::Close(_)) => Ok(None),
            Some(Part::Open(_)) => Err(LinkBroken("it opened its stream twice".to_owned())),
            None => Err(LinkBroken("it sent a message that this version does not know".to_owned())),
        }
    }
}

#[async_trait]
impl ReceiveHalf for IncomingStream {
    async fn receive(&mut self) -> Result<Option<Signal>, LinkBroken> {
        if self.finished {
            return Ok(None);
        }
        match self.messages.message().await {
            Ok(Some(message)) => {
                let signal = self.signal(message.part)?;
                if signal.is_none() {
                    self.finished = true;
                    if let Some(done) = self.done.take() {
                        // A handler that was cancelled needs no answer.
                        let _ = done.send(());
                    }
                }
                Ok(signal)
            }
            Ok(None) => Err(LinkBroken("its stream ended without a good-bye".to_owned())),
            Err(status) => Err(LinkBroken(format!("{}: {}", status.code(), status.message()))),
        }
    }
}
