//! RingService: takes the previous rank's stream and hands it to the rank whose place it names, and gives a state to a
//! rank that is behind.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
    time::Duration,
};

use ringtune_proto::{
    convert::parse,
    v1::{self, ExchangeRequest, RingOpen, exchange_request::Part, ring_service_server::SERVICE_NAME},
};
use ringtune_security::{Caller, Invitation, Peer};
use ringtune_shared::{
    ids::{Epoch, JobId, WorkerId},
    version::RING_PROTOCOLS,
};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Extensions, Request, Response, Status,
    body::Body,
    codegen::{BoxFuture, Service},
    server::{Grpc, NamedService, ServerStreamingService, UnaryService},
};
use tonic_prost::ProstCodec;

use super::{
    Rings,
    admission::{Calling, Opening, Wish},
    call,
    memory::Receiving,
    registry::NO_DOOR,
    state_give,
    stream::{self, Incoming},
    stripes::{MOST_STRIPES, Stripe},
    transport::IncomingStream,
    wire::MOST_SEGMENT_BYTES,
};

/// A stream has to say what it is within this time.
const OPENING_LIMIT: Duration = Duration::from_secs(10);
/// Limits of a measurement's time and bytes.
const MEASURE_LIMITS: (Duration, u64) = (Duration::from_secs(10), 1 << 30);
/// A chunk's payload and what is around it.
const MOST_MESSAGE_BYTES: usize = 2 * MOST_SEGMENT_BYTES as usize;

const FETCH_STATE: &str = "/ringtune.v1.RingService/FetchState";
const INVITE: &str = "/ringtune.v1.RingService/Invite";
/// The parts of a state.
type States = ReceiverStream<Result<v1::FetchStateResponse, Status>>;

/// The handler.
#[derive(Clone, Debug)]
pub struct RingServer {
    rings: Rings,
}

/// The gRPC service. Its streams are read by hand, where tonic would copy them; the rest is tonic's.
#[derive(Clone, Debug)]
pub struct RingGrpc {
    server: RingServer,
}

impl RingServer {
    /// The gRPC service for these places.
    pub fn service(rings: Rings) -> RingGrpc {
        RingGrpc { server: Self { rings } }
    }

    async fn fetch_state(&self, request: Request<v1::FetchStateRequest>) -> Result<Response<States>, Status> {
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

    fn invite(&self, extensions: &Extensions) -> Result<v1::InviteResponse, Status> {
        calling(extensions)?;
        let peer = extensions.get::<Peer>().ok_or_else(|| Status::internal("nobody knows who calls"))?;
        let Invitation { path, secret } = self.rings.invite(peer)?;
        let path = path.into_os_string().into_string();
        // A path that is no text cannot be told.
        let path = path.map_err(|_| Status::unimplemented(NO_DOOR))?;
        Ok(v1::InviteResponse { path, secret: secret.to_vec() })
    }

    /// Counts what comes.
    async fn measure(&self, extensions: &Extensions, body: Body) -> Result<v1::MeasureResponse, Status> {
        calling(extensions)?;
        let (longest, most) = MEASURE_LIMITS;
        let counted = timeout(longest, stream::count(body, most)).await;
        let received_bytes = counted
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("what is to be measured takes too long")))?;
        Ok(v1::MeasureResponse { received_bytes, most_stripes: MOST_STRIPES as u32 })
    }

    /// Takes a stream from its opening to its end.
    async fn exchange(&self, extensions: &Extensions, mut messages: Incoming) -> Result<(), Status> {
        let calling = calling(extensions)?;
        let peer = extensions.get::<Peer>();
        let valid = peer.and_then(|peer| peer.valid);
        let memory = peer.map_or(Ok(None), |peer| Receiving::of(&peer.handed));
        let memory = memory.map_err(|error| Status::invalid_argument(error.to_string()))?;
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
        let stripe = Stripe::new(open.stripe, open.stripes, open.attempt);
        let stripe = stripe.map_err(Status::invalid_argument)?;
        let seat = self.rings.find(opening).await?;
        // 2. Hand it over, and answer when it has ended.
        let (stream, ended) = IncomingStream::new(messages, memory, opening.job, valid, self.rings.metrics());
        seat.try_send((stripe, stream)).map_err(|_| {
            Status::failed_precondition("this rank has a stream from the previous one already")
        })?;
        match ended.await {
            Ok(()) => Ok(()),
            Err(_) => Err(Status::aborted("the rank has left the ring")),
        }
    }
}

impl NamedService for RingGrpc {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for RingGrpc {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let server = self.server.clone();
        match request.uri().path() {
            call::EXCHANGE => Box::pin(async move {
                let (head, body) = request.into_parts();
                let messages = Incoming::new(body, MOST_MESSAGE_BYTES);
                let answered = server.exchange(&head.extensions, messages).await;
                let response = v1::ExchangeResponse {};
                Ok(answered.map_or_else(Status::into_http, |()| stream::answered(&response)))
            }),
            call::MEASURE => Box::pin(async move {
                let (head, body) = request.into_parts();
                let measured = server.measure(&head.extensions, body).await;
                Ok(measured.map_or_else(Status::into_http, |answer| stream::answered(&answer)))
            }),
            FETCH_STATE => Box::pin(async move {
                let mut grpc = Grpc::new(ProstCodec::default()).max_decoding_message_size(MOST_MESSAGE_BYTES);
                Ok(grpc.server_streaming(FetchState(server), request).await)
            }),
            INVITE => Box::pin(async move {
                let mut grpc = Grpc::new(ProstCodec::default()).max_decoding_message_size(MOST_MESSAGE_BYTES);
                Ok(grpc.unary(Invite(server), request).await)
            }),
            _ => Box::pin(async { Ok(Status::unimplemented("RingService has no such method").into_http()) }),
        }
    }
}

struct FetchState(RingServer);

impl ServerStreamingService<v1::FetchStateRequest> for FetchState {
    type Response = v1::FetchStateResponse;
    type ResponseStream = States;
    type Future = BoxFuture<Response<States>, Status>;

    fn call(&mut self, request: Request<v1::FetchStateRequest>) -> Self::Future {
        let server = self.0.clone();
        Box::pin(async move { server.fetch_state(request).await })
    }
}

struct Invite(RingServer);

impl UnaryService<v1::InviteRequest> for Invite {
    type Response = v1::InviteResponse;
    type Future = Ready<Result<Response<v1::InviteResponse>, Status>>;

    fn call(&mut self, request: Request<v1::InviteRequest>) -> Self::Future {
        ready(self.0.invite(request.extensions()).map(Response::new))
    }
}

/// The caller. The layer in front admits workers only, unless the network is unauthenticated.
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

/// Checks that this rank understands the previous one's protocol.
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
