//! gRPC calls whose body is any bytes.
//!
//! An input is messages with a separator between them, each without the length of what it holds: the tag of its one
//! field, and the field's content. Lengths are put in before it is sent, so that changes reach what is within.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::http::{HeaderMap, Request, header::CONTENT_TYPE};
use bytes::Bytes;
use http_body::{Body as _, Frame};
use prost::Message;
use ringtune_tests::http2;
use tonic::{body::Body, transport::Channel};
use tower::ServiceExt as _;

const SEPARATOR: &[u8] = b"\n====\n";

/// Messages as an input.
pub(crate) fn input(messages: &[impl Message]) -> Vec<u8> {
    let pieces = messages.iter().map(|message| {
        let bytes = message.encode_to_vec();
        // A tag of one byte, then a length.
        let length = bytes.iter().skip(1).take_while(|byte| **byte >= 0x80).count() + 1;
        [bytes.get(..1).unwrap_or_default(), bytes.get(1 + length..).unwrap_or_default()].concat()
    });
    pieces.collect::<Vec<_>>().join(SEPARATOR)
}

/// The body of a call.
pub(crate) fn mend(input: Vec<u8>) -> Vec<u8> {
    let mut body = Vec::new();
    let mut rest = input.as_slice();
    loop {
        let place = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR);
        let piece = &rest[..place.unwrap_or(rest.len())];
        let mut message = Vec::new();
        if let Some((tag, content)) = piece.split_first() {
            message.push(*tag);
            prost::encoding::encode_varint(content.len() as u64, &mut message);
            message.extend(content);
        }
        body.extend(http2::message(&message));
        match place {
            Some(place) => rest = &rest[place + SEPARATOR.len()..],
            None => return body,
        }
    }
}

/// A body that is sent at once.
struct Whole(Option<Bytes>);

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// With that status.
    Status(i32),
    /// Its stream or its connection was ended.
    Reset,
    /// It was still under way when nobody waited any longer.
    Waits,
}

fn status(headers: &HeaderMap) -> Option<Answer> {
    let status = headers.get("grpc-status")?.to_str().ok()?;
    status.parse().ok().map(Answer::Status)
}

/// Makes a call, and waits so long for its end.
pub(crate) async fn call(channel: &Channel, path: &str, body: &[u8], patience: Duration) -> Answer {
    let body = Body::new(Whole(Some(Bytes::copy_from_slice(body))));
    let request = Request::post(format!("http://localhost{path}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap();
    let ended = async {
        let Ok(response) = channel.clone().oneshot(request).await else { return Answer::Reset };
        if let Some(status) = status(response.headers()) {
            return status;
        }
        let mut body = response.into_body();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let Ok(frame) = frame else { return Answer::Reset };
            if let Some(status) = frame.trailers_ref().and_then(status) {
                return status;
            }
        }
        Answer::Reset
    };
    tokio::time::timeout(patience, ended).await.unwrap_or(Answer::Waits)
}
