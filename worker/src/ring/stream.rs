//! A ring's stream as the rank that serves it has it: an HTTP/2 body, read without tonic's buffers between.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::{Body as HttpBody, Frame};
use ringtune_proto::v1::ExchangeRequest;
use tonic::{Status, body::Body, metadata::GRPC_CONTENT_TYPE};

use super::wire::{self, Messages};

async fn next_frame(body: &mut Body) -> Result<Option<Frame<Bytes>>, Status> {
    poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await.transpose()
}

/// The answer to a stream that ended as planned.
pub(super) fn answered(message: &impl prost::Message) -> Response<Body> {
    let answer = Answer { message: Some(wire::message(message)), done: false };
    let mut response = Response::new(Body::new(answer));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

/// A message and an OK status.
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

/// Throws away what comes, up to so many bytes; how many came.
///
/// # Errors
/// The connection is broken, or more came.
pub(super) async fn count(mut body: Body, most: u64) -> Result<u64, Status> {
    let mut bytes: u64 = 0;
    while let Some(frame) = next_frame(&mut body).await? {
        let piece = frame.into_data().unwrap_or_default();
        bytes = bytes.saturating_add(piece.len() as u64);
        if bytes > most {
            return Err(Status::resource_exhausted(format!("more than {most} bytes came")));
        }
    }
    Ok(bytes)
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
