//! Tells each connection of the calls that it has: one without calls is closed after a while.
//!
//! Invariant: each call that is served holds a `Call` of its connection until the last byte of its answer.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Extensions, Request, Response};
use http_body::{Body, Frame, SizeHint};
use ringtune_security::{Call, Peer};
use tower::Service;

/// Whoever makes a call, on either port. None: the request came over no connection, as in tests.
pub fn peer(extensions: &Extensions) -> Option<&Peer> {
    extensions.get::<Peer>()
}

/// Goes around all that serves calls, of gRPC and of HTTP.
#[derive(Debug, Clone, Copy)]
pub struct ActivityLayer;

impl<S> tower::Layer<S> for ActivityLayer {
    type Service = Active<S>;

    fn layer(&self, inner: S) -> Active<S> {
        Active(inner)
    }
}

/// Counts a call from its request to the last byte of its answer, or until it is dropped.
#[derive(Debug, Clone)]
pub struct Active<S>(S);

impl<S, B, R> Service<Request<B>> for Active<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = Response<ActiveBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = peer(request.extensions()).map(|peer| peer.activity.begin());
        let response = self.0.call(request);
        Box::pin(async move { Ok(response.await?.map(|inner| ActiveBody { inner, call })) })
    }
}

/// An answer's body, whose call ends with it.
#[derive(Debug)]
pub struct ActiveBody<R> {
    inner: R,
    call: Option<Call>,
}

impl<R: Body + Unpin> Body for ActiveBody<R> {
    type Data = R::Data;
    type Error = R::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<R::Data>, R::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) {
            self.call = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
