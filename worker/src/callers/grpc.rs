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
use ringtune_security::{Call, CallRates, Caller, CountedAs, Peer, TooManyCalls};
use tonic::{Code, Status, body::Body};
use tonic_types::{ErrorDetails, StatusExt as _};
use tower::{Layer, Service};

use super::table::{Denied, call, decide};
use crate::http::Metrics;

/// Lets calls in, or not, and keeps their connection while they last.
#[derive(Clone, Debug)]
pub(crate) struct GuardCalls {
    /// Counts those that are not let in.
    pub(crate) metrics: Arc<Metrics>,
    /// Rate limits of each caller.
    pub(crate) rates: CallRates,
}

impl<S> Layer<S> for GuardCalls {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, guard: self.clone() }
    }
}

/// A service behind the guard.
#[derive(Clone, Debug)]
pub(crate) struct Guarded<S> {
    inner: S,
    guard: GuardCalls,
}

impl<S, B> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send,
    B: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().cloned();
        let under_way = peer.as_ref().map(|peer| peer.activity.begin());
        let guard = self.guard.clone();
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        Box::pin(async move {
            let response = match guard.judge(peer.as_ref(), request.uri().path()).await {
                Ok(()) => inner.call(request).await?,
                Err(status) => {
                    guard.metrics.denied_calls.inc();
                    status.into_http()
                }
            };
            Ok(response.map(|body| Body::new(Held { body, _under_way: under_way })))
        })
    }
}

impl GuardCalls {
    /// Waits for the call's turn, and then decides.
    async fn judge(&self, peer: Option<&Peer>, path: &str) -> Result<(), Status> {
        if let Some(whose) = peer.and_then(|peer| CountedAs::of(&peer.caller, peer.address.ip())) {
            self.rates.turn(&whose).await.map_err(|error| too_many(&error))?;
        }
        judge(peer, path)
    }
}

fn too_many(error: &TooManyCalls) -> Status {
    let text = error.to_string();
    let mut details = ErrorDetails::with_quota_failure_violation("calls a second", &text);
    details.set_retry_info(Some(error.retry_after()));
    Status::with_error_details(Code::ResourceExhausted, text, details)
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
