//! The layer in front of all gRPC services.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use ringtune_security::{Call, Caller, Peer};
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use super::table::{Denied, call, decide};
use crate::http::Metrics;

/// Lets calls in, or not, and keeps their connection while they last.
#[derive(Clone, Debug)]
pub(crate) struct GuardCalls {
    /// Counts those that are not let in.
    pub(crate) metrics: Arc<Metrics>,
}

impl<S> Layer<S> for GuardCalls {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, metrics: Arc::clone(&self.metrics) }
    }
}

/// A service behind the guard.
#[derive(Clone, Debug)]
pub(crate) struct Guarded<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S, B> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let peer = request.extensions().get::<Peer>();
        let under_way = peer.map(|peer| peer.activity.begin());
        let answered = match judge(peer, request.uri().path()) {
            Ok(()) => Ok(self.inner.call(request)),
            Err(status) => {
                self.metrics.denied_calls.inc();
                Err(status.into_http())
            }
        };
        Box::pin(async move {
            let response = match answered {
                Ok(answer) => answer.await?,
                Err(response) => response,
            };
            Ok(response.map(|body| Body::new(Held { body, _under_way: under_way })))
        })
    }
}

fn judge(peer: Option<&Peer>, path: &str) -> Result<(), Status> {
    // The listener says for each connection who is on its other side.
    let Some(Peer { caller, .. }) = peer else {
        return Err(Status::internal("nobody knows who makes this call"));
    };
    let name = path.rsplit('/').next().unwrap_or(path);
    if *caller == Caller::Open {
        return Ok(());
    }
    let Some(who) = call(path) else {
        return Err(Status::unimplemented(format!("this worker has no call {path}")));
    };
    decide(caller, name, who).map_err(|denied: Denied| match denied.is_about_identity() {
        true => Status::unauthenticated(denied.to_string()),
        false => Status::permission_denied(denied.to_string()),
    })
}

/// An answer whose call lasts until its last byte.
pub(super) struct Held<B> {
    pub(super) body: B,
    pub(super) _under_way: Option<Call>,
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for Held<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
