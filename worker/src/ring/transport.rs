//! The two halves of a rank's connection: streams that it opens to the next rank, and those that the previous rank
//! opened here; one each, or several. Bulk goes from client to server only, one stream a connection.

use std::sync::Arc;

use bytes::Bytes;
use ringtune_proto::v1::{RingSlot, exchange_request::Part};
use ringtune_security::Validity;
use ringtune_shared::{
    ids::{Epoch, JobId},
    ring::{Frame, LinkBroken, Payload, ReceiveHalf, Signal, StripedReceive, StripedSend, Transport},
};
use tokio::sync::oneshot;

use super::{
    memory::{Receiving, Unusable},
    outgoing::Outgoing,
    stream::Incoming,
};
use crate::http::Metrics;

/// A connected rank's transport.
#[derive(Debug)]
pub(super) struct GrpcTransport {
    outgoing: StripedSend<Outgoing>,
    incoming: StripedReceive<IncomingStream>,
}

impl GrpcTransport {
    /// Puts dialled and accepted streams together, at least one of each, in their order.
    pub(super) fn new(outgoing: Vec<Outgoing>, incoming: Vec<IncomingStream>) -> Self {
        Self { outgoing: StripedSend::new(outgoing), incoming: StripedReceive::new(incoming) }
    }

    /// When the certificates of all connections are good; what is sooner over counts. None: without TLS.
    pub(super) fn valid(&self) -> Option<Validity> {
        let out = self.outgoing.streams().iter().filter_map(|stream| stream.valid);
        let into = self.incoming.streams().iter().filter_map(|stream| stream.valid);
        out.chain(into).reduce(|one, other| one.sooner(Some(other)))
    }
}

impl Transport for GrpcTransport {
    type Send = StripedSend<Outgoing>;
    type Receive = StripedReceive<IncomingStream>;

    fn split(self) -> (Self::Send, Self::Receive) {
        (self.outgoing, self.incoming)
    }
}

/// The stream from the previous rank, as its handler hands it over.
#[derive(Debug)]
pub(super) struct IncomingStream {
    messages: Incoming,
    /// Shared memory of large payloads, if the previous rank is on this machine.
    memory: Option<Receiving>,
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
    /// A stream whose opening has been read, and what tells the handler that it may answer. `memory`: came with its connection;
    /// `valid`: when the caller's certificate is good.
    pub(super) fn new(
        messages: Incoming,
        memory: Option<Receiving>,
        job: JobId,
        valid: Option<Validity>,
        metrics: Arc<Metrics>,
    ) -> (Self, oneshot::Receiver<()>) {
        let (done, ended) = oneshot::channel();
        (Self { messages, memory, job, finished: false, done: Some(done), valid, metrics }, ended)
    }

    /// The payload, wherever it lies.
    fn payload(&mut self, payload: Bytes, slot: Option<RingSlot>) -> Result<Payload, LinkBroken> {
        let Some(slot) = slot else { return Ok(payload.into()) };
        let taken = match &mut self.memory {
            Some(memory) => memory.take(slot),
            None => Err(Unusable::None),
        };
        taken.map_err(|error| LinkBroken(error.to_string()))
    }

    fn signal(&mut self, part: Option<Part>) -> Result<Option<Signal>, LinkBroken> {
        match part {
            Some(Part::Chunk(chunk)) => {
                let payload = self.payload(chunk.payload, chunk.slot)?;
                self.metrics.exchange_received_bytes.inc_by(payload.len() as u64);
                Ok(Some(Signal::Frame(Frame {
                    job: self.job,
                    epoch: Epoch(chunk.epoch),
                    collective: chunk.collective,
                    hop: chunk.hop,
                    segment: chunk.segment,
                    payload,
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
