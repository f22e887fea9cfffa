//! The half of a rank's connection that leads to the next rank.

use std::sync::Arc;

use h2::SendStream;
use ringtune_proto::v1::{self, ExchangeRequest, exchange_request::Part};
use ringtune_security::Validity;
use ringtune_shared::ring::{Frame, LinkBroken, Payload, SendHalf, Signal};
use tokio::task::{JoinError, JoinHandle};
use tonic::{Code, Status};

use super::{
    call::{self, Call, Closed},
    memory::{self, Sending},
    wire::Piece,
};
use crate::http::Metrics;

/// The stream to the next rank.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Gone once finished or broken.
    stream: Option<SendStream<Piece>>,
    answer: JoinHandle<Result<(), Status>>,
    /// Shared memory of large payloads, if the next rank is on this machine.
    memory: Option<Sending>,
    /// When the certificates of the connection are good.
    pub(super) valid: Option<Validity>,
    metrics: Arc<Metrics>,
}

/// The end of a stream that the ring does not use yet.
#[derive(Debug)]
pub(super) enum Ended {
    /// The next rank has not taken its seat: later it may have.
    TooEarly(String),
    /// The next rank will not have it.
    Refused(String),
    /// The connection, or the next rank's own ring, is gone.
    Broken(String),
}

/// The answer to a stream.
type Answer = Result<Result<(), Status>, JoinError>;

impl Outgoing {
    /// A stream on which nothing was sent yet.
    pub(super) fn new(
        call: Call,
        memory: Option<Sending>,
        valid: Option<Validity>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { stream: Some(call.stream), answer: call.answer, memory, valid, metrics }
    }

    /// Says whose stream it is.
    ///
    /// # Errors
    /// It has ended already.
    pub(super) async fn begin(&mut self, open: v1::RingOpen) -> Result<(), LinkBroken> {
        self.push(message(Part::Open(open)), false).await
    }

    /// Waits until the stream has ended, before anything was sent. Not to be called again after that.
    pub(super) async fn ended(&mut self) -> Ended {
        let answer = (&mut self.answer).await;
        self.stream = None;
        let code = answer.as_ref().ok().and_then(|answer| answer.as_ref().err()).map(Status::code);
        let text = text(answer);
        match code {
            Some(Code::NotFound | Code::ResourceExhausted) => Ended::TooEarly(text),
            Some(
                Code::FailedPrecondition
                | Code::InvalidArgument
                | Code::Unimplemented
                | Code::PermissionDenied
                | Code::Unauthenticated,
            ) => Ended::Refused(text),
            _ => Ended::Broken(text),
        }
    }

    /// Sends a message; `last`: the stream ends behind it.
    async fn push(&mut self, piece: Piece, last: bool) -> Result<(), LinkBroken> {
        let Some(stream) = &mut self.stream else {
            return Err(LinkBroken("it was finished before".to_owned()));
        };
        let answer = tokio::select! {
            biased;
            // The answer comes first only when the next rank refused or is gone.
            answer = &mut self.answer => answer,
            sent = call::send(stream, piece, last) => match sent {
                Ok(()) => return Ok(()),
                // The stream is closed a moment before the answer says why.
                Err(Closed) => (&mut self.answer).await,
            },
        };
        Err(self.broken(answer))
    }
}

impl Outgoing {
    /// A chunk as it goes through the stream: what is large lies in shared memory by then, where there is some.
    async fn chunk(&mut self, frame: Frame) -> Result<Piece, LinkBroken> {
        let Frame { epoch, collective, hop, segment, mut payload, checksum, .. } = frame;
        let mut slot = None;
        if let Some(memory) = self.memory.as_mut().filter(|_| payload.len() >= memory::LEAST_BYTES) {
            let put = tokio::select! {
                biased;
                // It gives no slot back any more.
                answer = &mut self.answer => return Err(self.broken(answer)),
                put = memory.put(&payload) => put,
            };
            slot = match put {
                Ok(slot) => Some(slot),
                Err(_) => {
                    let answer = (&mut self.answer).await;
                    return Err(self.broken(answer));
                }
            };
            payload = Payload::default();
        }
        let epoch = epoch.0;
        let chunk = v1::RingChunk { epoch, collective, hop, segment, checksum, slot, ..Default::default() };
        Ok(Piece::of_chunk(&chunk, payload))
    }

    fn broken(&mut self, answer: Answer) -> LinkBroken {
        self.stream = None;
        LinkBroken(text(answer))
    }
}

/// A message that is no chunk.
fn message(part: Part) -> Piece {
    Piece::of(ExchangeRequest { part: Some(part) })
}

/// Why a stream ended, which should not have.
fn text(answer: Answer) -> String {
    match answer {
        Ok(Ok(())) => "it ended the stream".to_owned(),
        Ok(Err(status)) => format!("{}: {}", status.code(), status.message()),
        Err(error) => error.to_string(),
    }
}

impl SendHalf for Outgoing {
    async fn send(&mut self, signal: Signal) -> Result<(), LinkBroken> {
        let piece = match signal {
            Signal::Frame(frame) => {
                self.metrics.exchange_sent_bytes.inc_by(frame.payload.len() as u64);
                self.chunk(frame).await?
            }
            Signal::Pulse { epoch, .. } => message(Part::Pulse(v1::RingPulse { epoch: epoch.0 })),
        };
        self.push(piece, false).await
    }

    async fn finish(&mut self) -> Result<(), LinkBroken> {
        if self.stream.is_none() {
            return Ok(());
        }
        self.push(message(Part::Close(v1::RingClose {})), true).await?;
        // The next rank answers when it has read all of it: until then this one stays, for what it sent last goes with its
        // process.
        self.stream = None;
        match (&mut self.answer).await {
            Ok(Ok(())) => Ok(()),
            answer => Err(LinkBroken(text(answer))),
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // Without a close before it, the connection's end tells the next rank that it is broken.
        if self.stream.take().is_some() {
            self.answer.abort();
        }
    }
}
