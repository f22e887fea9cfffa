//! Serves pages to people, Prometheus and probes: HTTP/1 alone, and bounded where hyper leaves it open.
//!
//! HTTP/2 would let one connection ask for hundreds of pages and take none of them, so it is not spoken here. The
//! listener sees to connections without requests and to those that take nothing; here is how large a request may be, and
//! how long a connection may live: one that takes its page byte by byte holds a place no longer than that.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt as _};

use crate::accept::opening::say;
use crate::accept::{Connection, Listener, Refusal, Refusals};
use crate::plaintext;

/// The bounds of each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimits {
    /// The head of a request: more is answered with 431, a longer path with 414. About as much of an answer is kept for a
    /// client that does not take it. At least 8192.
    pub head_bytes: usize,
    /// How long a connection is kept for more requests.
    pub life: Duration,
    /// How long an answer may take that is under way then, or when the server ends.
    pub last_answer: Duration,
}

impl Default for PageLimits {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self { head_bytes: 32 << 10, life: 300 * second, last_answer: 10 * second }
    }
}

/// Told when a connection is about to end, because it has lived long enough or the server ends: for answers that have no
/// end of their own.
#[derive(Debug, Clone, Default)]
pub struct Closing(CancellationToken);

impl Closing {
    /// Waits for it.
    pub async fn closing(&self) {
        self.0.cancelled().await;
    }
}

/// Serves until `end`; then answers what it has begun. Each request has the [`Peer`](crate::Peer) that makes it and its
/// connection's [`Closing`] among its extensions.
pub async fn serve_pages<S, B>(
    mut listener: Listener,
    service: S,
    limits: PageLimits,
    end: impl Future<Output = ()>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let (mut served, closing, mut end) = (JoinSet::new(), CancellationToken::new(), pin!(end));
    loop {
        tokio::select! {
            connection = listener.accept() => {
                let refusals = listener.refusals();
                served.spawn(serve(connection, service.clone(), limits, closing.clone(), refusals));
            }
            Some(_) = served.join_next(), if !served.is_empty() => {}
            () = &mut end => break,
        }
    }
    drop(listener);
    closing.cancel();
    while served.join_next().await.is_some() {}
}

async fn serve<S, B>(
    connection: Connection,
    service: S,
    limits: PageLimits,
    closing: CancellationToken,
    refusals: Refusals,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    if connection.is_plain_http2() {
        return say(connection, &plaintext::use_http1()).await;
    }
    let peer = connection.peer().clone();
    let (address, caller) = (peer.address, peer.caller.clone());
    // Ends with the server's.
    let own = Closing(closing.child_token());
    let told = own.clone();
    let answer = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        request.extensions_mut().insert(told.clone());
        service.clone().oneshot(request)
    });
    let mut http = http1::Builder::new();
    // Slow heads are the listener's: it has a limit until the first request and one between two.
    http.max_buf_size(limits.head_bytes).header_read_timeout(None);
    let mut serving = pin!(http.serve_connection(TokioIo::new(connection), answer));
    tokio::select! {
        // Whatever went wrong was the other side's, or is counted already.
        _ = serving.as_mut() => return,
        () = closing.cancelled() => {}
        () = sleep(limits.life) => {}
    }
    own.0.cancel();
    serving.as_mut().graceful_shutdown();
    if timeout(limits.last_answer, serving).await.is_err() {
        refusals.note(Refusal::Unread, Some(address), &caller);
    }
}
