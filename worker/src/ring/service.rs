//! RingService: takes the previous rank's stream and hands it to the rank whose place it names, and gives a state to a
//! rank that is behind.

use std::time::Duration;

use ringtune_proto::{
    convert::parse,
    v1::{
        self, ExchangeRequest, ExchangeResponse, RingOpen,
        exchange_request::Part,
        ring_service_server::{RingService, RingServiceServer},
    },
};
use ringtune_security::{Caller, Peer};
use ringtune_shared::{
    ids::{Epoch, JobId, WorkerId},
    version::RING_PROTOCOLS,
};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Extensions, Request, Response, Status, Streaming};

use super::{
    Rings,
    admission::{Calling, Opening, Wish},
    state_give,
    transport::{IncomingStream, MOST_SEGMENT_BYTES},
};

/// A stream has to say what it is within this time.
const OPENING_LIMIT: Duration = Duration::from_secs(10);
/// A chunk's payload and what is around it.
const MOST_MESSAGE_BYTES: usize = 2 * MOST_SEGMENT_BYTES as usize;

/// The handler.
#[derive(Clone, Debug)]
pub struct RingServer {
    rings: Rings,
}

impl RingServer {
    /// The gRPC service for these places.
    pub fn service(rings: Rings) -> RingServiceServer<Self> {
        RingServiceServer::new(Self { rings }).max_decoding_message_size(MOST_MESSAGE_BYTES)
    }
}

#[tonic::async_trait]
impl RingService for RingServer {
    type FetchStateStream = ReceiverStream<Result<v1::FetchStateResponse, Status>>;

    async fn fetch_state(
        &self,
        request: Request<v1::FetchStateRequest>,
    ) -> Result<Response<Self::FetchStateStream>, Status> {
        let calling = calling(request.extensions())?;
        let asked = request.into_inner();
        let wish = Wish {
            calling,
            job: job_id("job_id", &asked.job_id)?,
            epoch: Epoch(asked.epoch),
            rank: asked.rank,
            step: asked.step,
        };
        let given = self.rings.wanted(wish).await?;
        Ok(Response::new(state_give::give(given, self.rings.giving()).await?))
    }

    async fn exchange(
        &self,
        request: Request<Streaming<ExchangeRequest>>,
    ) -> Result<Response<ExchangeResponse>, Status> {
        let calling = calling(request.extensions())?;
        let valid = request.extensions().get::<Peer>().and_then(|peer| peer.valid);
        let mut messages = request.into_inner();
        // 1. Who calls, for which place?
        let first = timeout(OPENING_LIMIT, messages.message())
            .await
            .map_err(|_| Status::deadline_exceeded("the stream did not begin with an opening"))??;
        let Some(ExchangeRequest { part: Some(Part::Open(open)) }) = first else {
            return Err(Status::invalid_argument("open: a stream begins with its opening"));
        };
        let opening = Opening {
            calling,
            job: job_id("open.job_id", &open.job_id)?,
            epoch: Epoch(open.epoch),
            rank: open.rank,
            world_size: open.world_size,
        };
        check_language(&open)?;
        let seat = self.rings.find(opening).await?;
        // 2. Hand it over, and answer when it has ended.
        let (stream, ended) = IncomingStream::new(messages, opening.job, valid, self.rings.metrics());
        seat.try_send(stream).map_err(|_| {
            Status::failed_precondition("this rank has a stream from the previous one already")
        })?;
        match ended.await {
            Ok(()) => Ok(Response::new(ExchangeResponse {})),
            Err(_) => Err(Status::aborted("the rank has left the ring")),
        }
    }
}

/// Who calls. The layer before lets workers in alone, but on a network where nobody is asked.
fn calling(extensions: &Extensions) -> Result<Calling, Status> {
    let caller = extensions.get::<Peer>().map(|peer| &peer.caller);
    match caller {
        Some(Caller::Open) => Ok(Calling::Anybody),
        Some(Caller::Known(identity)) => match identity.worker() {
            Some(id) => Ok(Calling::Worker(WorkerId(id))),
            None => Err(Status::permission_denied(format!("a ring is for workers; you are {identity}"))),
        },
        Some(Caller::Anonymous | Caller::Refused(_)) | None => {
            Err(Status::unauthenticated("a ring is for workers that a certificate names"))
        }
    }
}

fn job_id(field: &str, text: &str) -> Result<JobId, Status> {
    parse(field, text).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// That this rank understands what the previous one is going to send.
fn check_language(open: &RingOpen) -> Result<(), Status> {
    let refuse = |text| Err(Status::failed_precondition(text));
    if !RING_PROTOCOLS.contains(open.protocol) {
        return refuse(format!(
            "open.protocol: got {}; allowed: {RING_PROTOCOLS}: install one version of Ringtune on both workers",
            open.protocol
        ));
    }
    if open.max_segment_bytes == 0 || open.max_segment_bytes > MOST_SEGMENT_BYTES {
        return refuse(format!(
            "open.max_segment_bytes: got {}; allowed: 1 to {MOST_SEGMENT_BYTES}",
            open.max_segment_bytes
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_of_another_protocol_or_with_larger_segments_is_refused_at_its_opening() {
        let good = RingOpen {
            protocol: RING_PROTOCOLS.max,
            max_segment_bytes: MOST_SEGMENT_BYTES,
            ..RingOpen::default()
        };
        assert!(check_language(&good).is_ok());
        // Release 0.1.0 named none.
        for protocol in [0, RING_PROTOCOLS.max + 1] {
            let status = check_language(&RingOpen { protocol, ..good.clone() }).expect_err("refused");
            assert_eq!(status.code(), tonic::Code::FailedPrecondition);
            assert!(
                status.message().contains(&format!("got {protocol}; allowed: {RING_PROTOCOLS}")),
                "{status}"
            );
        }
        for max_segment_bytes in [0, MOST_SEGMENT_BYTES + 1] {
            let status =
                check_language(&RingOpen { max_segment_bytes, ..good.clone() }).expect_err("refused");
            assert!(status.message().starts_with("open.max_segment_bytes: got"), "{status}");
        }
    }
}
