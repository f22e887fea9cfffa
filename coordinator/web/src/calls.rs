//! The API's services, called in process.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::client::Grpc;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt as _};

/// How large an answer may be: it comes from this process.
pub(crate) const LARGEST_ANSWER: usize = 64 << 20;

/// The API's services, with all their layers. Cheap to clone.
#[derive(Clone)]
pub struct Calls(BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>);

impl Calls {
    /// Wraps a service that takes gRPC requests; each has the [`Peer`](ringtune_security::Peer) that it came from among its
    /// extensions.
    pub fn new<S, B>(service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<tonic::codegen::StdError>,
    {
        let boxed = |answer: Response<B>| answer.map(Body::new);
        Self(BoxCloneSyncService::new(service.map_response(boxed)))
    }

    /// A client that is ready for one call.
    pub(crate) async fn client(&self) -> Result<Grpc<Self>, Status> {
        let mut client = Grpc::new(self.clone()).max_decoding_message_size(LARGEST_ANSWER);
        client.ready().await.map_err(|_| Status::unavailable("the services are not ready"))?;
        Ok(client)
    }
}

impl Service<Request<Body>> for Calls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future =
        <BoxCloneSyncService<Request<Body>, Response<Body>, Infallible> as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match request.extensions().get::<Unread>().cloned() {
            Some(unread) => self.0.call(request.map(|body| Body::new(MayFail { body, unread }))),
            None => self.0.call(request),
        }
    }
}

/// Why a call's message could not be read, once that is known: an extension of its request. The call fails with it, and is counted so;
/// by itself tonic calls all that keeps a message from being sent an internal error.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unread(Arc<OnceLock<Status>>);

impl Unread {
    /// The first word counts.
    pub(crate) fn set(&self, status: &Status) {
        let _ = self.0.set(status.clone());
    }
}

/// A request's body.
struct MayFail {
    body: Body,
    unread: Unread,
}

impl http_body::Body for MayFail {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| frame.map_err(|status| self.unread.0.get().cloned().unwrap_or(status))))
    }
}

/// The path of a call; it is one already where it comes from a request's own.
pub(crate) fn path(text: &str) -> Result<PathAndQuery, Status> {
    text.parse().map_err(|_| Status::unimplemented(format!("{text:?} is no method")))
}
