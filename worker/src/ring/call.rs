//! A ring's stream as the rank that opens it has it: HTTP/2 of its own, on a connection of its own. A message is one frame,
//! which goes to the connection where it is sent, and arrives in one piece.

use std::{
    future::{Future, pending, poll_fn, ready},
    pin::pin,
    time::{Duration, Instant},
};

use bytes::{Buf as _, Bytes};
use h2::{
    Ping, PingPong, SendStream,
    client::{Builder, Connection, ResponseFuture, SendRequest},
};
use http::{HeaderValue, Method, Request, Uri, Version, header};
use ringtune_proto::v1::MeasureResponse;
use ringtune_security::ConnectError;
use ringtune_shared::tasks;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::{JoinError, JoinHandle},
    time::{Instant as Moment, sleep, timeout},
};
use tonic::{Status, metadata::GRPC_CONTENT_TYPE};

use super::wire::{self, MOST_FRAME_BYTES, Piece};

/// Path of the call for the address of a worker's local socket.
pub(super) const INVITE: &str = "/ringtune.v1.RingService/Invite";
/// For the answer to a question.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Path of the call that measures connections.
pub(super) const MEASURE: &str = "/ringtune.v1.RingService/Measure";
/// Path of the call that opens a stream.
pub(super) const EXCHANGE: &str = "/ringtune.v1.RingService/Exchange";
/// Of an answer: that to a stream says nothing, that to a question little.
const MOST_ANSWER_BYTES: usize = 8 << 10;
/// Limit of unsent bytes: they are written soon, while they are still in a core's cache.
const MOST_UNSENT_BYTES: usize = MOST_FRAME_BYTES as usize;
/// A frame waits for so long until the next rank has room for all of it. Where that never has so much room at once, it goes in parts.
const WHOLE_WITHIN: Duration = Duration::from_millis(100);

/// A stream that is open, and what becomes of it.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) stream: SendStream<Piece>,
    /// Ends when the next rank has answered, or the connection is gone. It keeps the connection going.
    pub(super) answer: JoinHandle<Result<(), Status>>,
}

/// Why a connection was not made.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) enum Unconnected {
    Refused(#[from] tonic::transport::Error),
    Unreached(#[from] ConnectError),
    Unopened(#[from] h2::Error),
    Ended(#[from] JoinError),
}

impl Unconnected {
    /// The error itself, without this one around it, through which it would not be seen.
    pub(super) fn cause(&self) -> &(dyn std::error::Error + 'static) {
        match self {
            Self::Refused(error) => error,
            Self::Unreached(error) => error,
            Self::Unopened(error) => error,
            Self::Ended(error) => error,
        }
    }
}

/// The stream takes nothing any more: the answer says why.
#[derive(Debug)]
pub(super) struct Closed;

/// A connection of HTTP/2 that a stream is opened on.
pub(super) struct Http2<Io> {
    requests: SendRequest<Piece>,
    connection: Connection<Io, Piece>,
    pings: Option<PingPong>,
}

impl<Io: AsyncRead + AsyncWrite + Send + Unpin + 'static> Http2<Io> {
    /// Begins to speak HTTP/2.
    ///
    /// # Errors
    /// The connection takes nothing.
    pub(super) async fn begin(io: Io) -> Result<Self, h2::Error> {
        let mut builder = Builder::new();
        let builder = builder.enable_push(false).max_send_buffer_size(MOST_UNSENT_BYTES);
        let (requests, mut connection) = builder.handshake(io).await?;
        let pings = connection.ping_pong();
        Ok(Self { requests, connection, pings })
    }

    /// Asks something before the stream is opened.
    ///
    /// # Errors
    /// There is no answer, or it is none.
    pub(super) async fn ask<A: prost::Message + Default>(
        &mut self,
        url: Uri,
        question: &impl prost::Message,
    ) -> Result<A, Status> {
        let question = Piece::of_message(question);
        let ask = async move |mut stream: SendStream<Piece>| stream.send_data(question, true).map_err(broken);
        self.call(url, ASK_LIMIT, ask).await
    }

    /// Sends these bytes again and again until then, but once at least; what the other side says that came of it.
    ///
    /// # Errors
    /// It does not know what this is, or the connection is broken, or all of it takes longer than `limit`.
    pub(super) async fn measure(
        &mut self,
        url: Uri,
        filler: Bytes,
        until: Instant,
        limit: Duration,
    ) -> Result<MeasureResponse, Status> {
        let fill = async move |mut stream: SendStream<Piece>| {
            loop {
                let last = Instant::now() >= until;
                // If it takes nothing any more, the answer says why.
                if send(&mut stream, Piece::of_encoded(filler.clone()), last).await.is_err() || last {
                    return Ok(());
                }
            }
        };
        self.call(url, limit, fill).await
    }

    /// Asks again and again whether the connection stands, until it does not: when it last did, and what happened.
    pub(super) async fn stands(self, interval: Duration, limit: Duration) -> (Moment, String) {
        let Self { requests: _requests, connection, pings } = self;
        let mut last = Moment::now();
        let asking = async {
            let Some(mut pings) = pings else { return pending().await };
            loop {
                sleep(interval).await;
                match timeout(limit, pings.ping(Ping::opaque())).await {
                    Ok(Ok(_)) => last = Moment::now(),
                    // The connection says why.
                    Ok(Err(_)) => return pending().await,
                    Err(_) => return "the connection gives no sign of life".to_owned(),
                }
            }
        };
        let reason = tokio::select! {
            reason = asking => reason,
            ended = connection => {
                ended.map_or_else(|error| error.to_string(), |()| "the connection has ended".to_owned())
            }
        };
        (last, reason)
    }

    /// A call that is over before the stream is opened.
    async fn call<A: prost::Message + Default, F: Future<Output = Result<(), Status>>>(
        &mut self,
        url: Uri,
        limit: Duration,
        say: impl FnOnce(SendStream<Piece>) -> F,
    ) -> Result<A, Status> {
        let (requests, connection) = (&mut self.requests, &mut self.connection);
        let answered = async {
            poll_fn(|context| requests.poll_ready(context)).await.map_err(broken)?;
            let (answer, stream) = requests.send_request(request(url), false).map_err(broken)?;
            say(stream).await?;
            let body = body(answer).await?;
            wire::answer(&body).map_err(|error| Status::internal(error.to_string()))
        };
        tokio::select! {
            biased;
            answered = timeout(limit, answered) => {
                answered.unwrap_or_else(|_| Err(Status::deadline_exceeded("there is no answer")))
            }
            ended = connection => Err(ended.map_or_else(broken, |()| Status::unavailable("the connection has ended"))),
        }
    }

    /// Opens a stream, in the runtime that this is called in. `keep_alive`: how often HTTP/2 asks whether the connection stands,
    /// and how long an answer may take.
    ///
    /// # Errors
    /// The connection takes nothing.
    pub(super) async fn exchange(
        self,
        url: Uri,
        keep_alive: (Duration, Duration),
    ) -> Result<Call, h2::Error> {
        let Self { requests, connection, pings } = self;
        let (interval, limit) = keep_alive;
        let (answer, stream) = requests.ready().await?.send_request(request(url), false)?;
        let answer = tasks::spawn(async move {
            let mut answer = pin!(answered(answer));
            let ended = tokio::select! {
                biased;
                answer = &mut answer => return answer,
                ended = connection => ended.map_or_else(broken, |()| Status::unavailable("the connection has ended")),
                silent = silent(pings, interval, limit) => silent,
            };
            // An answer that came with the end still counts.
            tokio::select! {
                biased;
                answer = &mut answer => answer,
                () = ready(()) => Err(ended),
            }
        });
        Ok(Call { stream, answer })
    }
}

/// A gRPC call's head.
fn request(url: Uri) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = url;
    request.headers_mut().insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
    request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
    request
}

/// Sends a message; `last`: the stream ends behind it. Waits until there is room for it.
pub(super) async fn send(stream: &mut SendStream<Piece>, piece: Piece, last: bool) -> Result<(), Closed> {
    let bytes = piece.remaining();
    stream.reserve_capacity(bytes);
    if stream.capacity() < bytes {
        match timeout(WHOLE_WITHIN, room(stream, bytes)).await {
            Ok(room) => room?,
            Err(_) => room(stream, 1).await?,
        }
    }
    stream.send_data(piece, last).map_err(|_| Closed)
}

/// Waits until so many bytes go at once.
async fn room(stream: &mut SendStream<Piece>, bytes: usize) -> Result<(), Closed> {
    while stream.capacity() < bytes {
        let more = poll_fn(|context| stream.poll_capacity(context)).await;
        more.ok_or(Closed)?.map_err(|_| Closed)?;
    }
    Ok(())
}

/// The next rank's answer at the end of a stream.
async fn answered(answer: ResponseFuture) -> Result<(), Status> {
    body(answer).await.map(drop)
}

/// The whole body of a successful answer.
async fn body(answer: ResponseFuture) -> Result<Vec<u8>, Status> {
    let (head, mut body) = answer.await.map_err(broken)?.into_parts();
    if let Some(status) = Status::from_header_map(&head.headers) {
        return ended_with(status).map(|()| Vec::new());
    }
    if !head.status.is_success() {
        return Err(Status::unknown(format!("the answer is HTTP {}", head.status)));
    }
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        bytes.extend_from_slice(&piece.map_err(broken)?);
        if bytes.len() > MOST_ANSWER_BYTES {
            return Err(Status::internal(format!("the answer is longer than {MOST_ANSWER_BYTES} bytes")));
        }
    }
    match body.trailers().await.map_err(broken)? {
        Some(trailers) => Status::from_header_map(&trailers)
            .map_or_else(|| Err(Status::unknown("the answer has no status")), ended_with)
            .map(|()| bytes),
        None => Err(Status::unknown("the answer ended without a status")),
    }
}

fn ended_with(status: Status) -> Result<(), Status> {
    if status.code() == tonic::Code::Ok { Ok(()) } else { Err(status) }
}

fn broken(error: h2::Error) -> Status {
    Status::from_error(Box::new(error))
}

/// Asks again and again whether the connection stands; ends when nothing answers.
async fn silent(pings: Option<PingPong>, interval: Duration, limit: Duration) -> Status {
    let Some(mut pings) = pings else { return pending().await };
    loop {
        sleep(interval).await;
        match timeout(limit, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection says why.
            Ok(Err(_)) => return pending().await,
            Err(_) => return Status::unavailable("the connection gives no sign of life"),
        }
    }
}
