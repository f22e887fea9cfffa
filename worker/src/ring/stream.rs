//! A ring's stream as an HTTP/2 body, without tonic's buffers between: what it reads and writes is framed by [`super::wire`].

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, header};
use http_body::{Body as HttpBody, Frame};
use ringtune_proto::v1::{ExchangeRequest, ExchangeResponse};
use tokio::sync::mpsc;
use tonic::{Status, body::Body, metadata::GRPC_CONTENT_TYPE, transport::Channel};
use tower::{Service as _, ServiceExt as _};

use super::wire::{self, Messages};

/// Where a stream is opened.
pub(super) const EXCHANGE: &str = "/ringtune.v1.RingService/Exchange";
/// Of the answer to a stream, which says nothing.
const MOST_ANSWER_BYTES: usize = 1 << 10;

/// Sends all messages, and returns when the other side has answered.
pub(super) async fn call(
    mut channel: Channel,
    messages: mpsc::Receiver<ExchangeRequest>,
) -> Result<(), Status> {
    let failed = |error: tonic::transport::Error| Status::from_error(Box::new(error));
    let mut request = Request::new(Body::new(Outgoing { messages, payload: None }));
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = http::Uri::from_static(EXCHANGE);
    request.headers_mut().insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
    request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
    let answer = channel.ready().await.map_err(failed)?.call(request).await.map_err(failed)?;
    let (head, mut body) = answer.into_parts();
    if let Some(status) = Status::from_header_map(&head.headers) {
        return ended_with(status);
    }
    if !head.status.is_success() {
        return Err(Status::unknown(format!("the answer is HTTP {}", head.status)));
    }
    let mut bytes = 0;
    while let Some(frame) = next_frame(&mut body).await? {
        if let Some(trailers) = frame.trailers_ref() {
            return Status::from_header_map(trailers)
                .map_or_else(|| Err(Status::unknown("the answer has no status")), ended_with);
        }
        bytes += frame.data_ref().map_or(0, Bytes::len);
        if bytes > MOST_ANSWER_BYTES {
            return Err(Status::internal(format!("the answer is longer than {MOST_ANSWER_BYTES} bytes")));
        }
    }
    Err(Status::unknown("the answer ended without a status"))
}

fn ended_with(status: Status) -> Result<(), Status> {
    if status.code() == tonic::Code::Ok { Ok(()) } else { Err(status) }
}

async fn next_frame(body: &mut Body) -> Result<Option<Frame<Bytes>>, Status> {
    poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await.transpose()
}

/// What the answer to a stream that ended as planned is.
pub(super) fn answered() -> Response<Body> {
    let answer = Answer { message: Some(wire::message(&ExchangeResponse {})), done: false };
    let mut response = Response::new(Body::new(answer));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

/// The messages of a stream that is sent.
struct Outgoing {
    messages: mpsc::Receiver<ExchangeRequest>,
    /// Of the chunk whose head was sent last.
    payload: Option<Bytes>,
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(payload) = self.payload.take() {
            return Poll::Ready(Some(Ok(Frame::data(payload))));
        }
        self.messages.poll_recv(context).map(|message| {
            let (head, payload) = wire::framed(message?);
            self.payload = payload;
            Some(Ok(Frame::data(head)))
        })
    }
}

/// One message and the status that all is well.
struct Answer {
    message: Option<Bytes>,
    done: bool,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if std::mem::replace(&mut self.done, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::new();
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

/// The messages of a stream that comes.
#[derive(Debug)]
pub(super) struct Incoming {
    body: Body,
    messages: Messages,
}

impl Incoming {
    /// Of at most `most` bytes each.
    pub(super) fn new(body: Body, most: usize) -> Self {
        Self { body, messages: Messages::new(most) }
    }

    /// The next message; none when the stream has ended.
    ///
    /// # Errors
    /// The connection is broken, or what came is no message.
    pub(super) async fn message(&mut self) -> Result<Option<ExchangeRequest>, Status> {
        loop {
            let next = self.messages.next().map_err(|error| Status::invalid_argument(error.to_string()))?;
            if next.is_some() {
                return Ok(next);
            }
            match next_frame(&mut self.body).await? {
                Some(frame) => {
                    if let Ok(piece) = frame.into_data() {
                        self.messages.push(piece);
                    }
                }
                None if self.messages.is_within() => {
                    return Err(Status::internal("the stream ended within a message"));
                }
                None => return Ok(None),
            }
        }
    }
}
