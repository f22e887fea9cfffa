//! RingService: takes the previous rank's stream and hands it to the rank whose place it names.

use std::time::Duration;

use ringtune_proto::{
    convert::parse,
    v1::{
        ExchangeRequest, ExchangeResponse,
        exchange_request::Part,
        ring_service_server::{RingService, RingServiceServer},
    },
};
use ringtune_shared::ids::Epoch;
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};

use super::{Rings, registry::Opening, transport::IncomingStream};

/// A stream has to say what it is within this time.
const OPENING_LIMIT: Duration = Duration::from_secs(10);
/// Segments are at most 1 MiB.
const MOST_MESSAGE_BYTES: usize = 2 << 20;

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
    async fn exchange(
        &self,
        request: Request<Streaming<ExchangeRequest>>,
    ) -> Result<Response<ExchangeResponse>, Status> {
        let mut messages = request.into_inner();
        // 1. Who calls, for which place?
        let first = timeout(OPENING_LIMIT, messages.message())
            .await
            .map_err(|_| Status::deadline_exceeded("the stream did not begin with an opening"))??;
        let Some(ExchangeRequest { part: Some(Part::Open(open)) }) = first else {
            return Err(Status::invalid_argument("open: a stream begins with its opening"));
        };
        let opening = Opening {
            job: parse("open.job_id", &open.job_id)
                .map_err(|error| Status::invalid_argument(error.to_string()))?,
            epoch: Epoch(open.epoch),
            rank: open.rank,
            world_size: open.world_size,
        };
        let seat = self.rings.find(opening)?;
        // 2. Hand it over, and answer when it has ended.
        let (stream, ended) = IncomingStream::new(messages, self.rings.metrics());
        seat.try_send(stream).map_err(|_| {
            Status::failed_precondition("this rank has a stream from the previous one already")
        })?;
        match ended.await {
            Ok(()) => Ok(Response::new(ExchangeResponse {})),
            Err(_) => Err(Status::unavailable("the rank has left the ring")),
        }
    }
}
