//! The HTTP port: `/`, `/metrics`, `/healthz`, `/readyz`. For people, Prometheus and probes; jobs are gRPC's.

mod gate;
#[cfg(test)]
mod tests;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use ringtune_security::{Listener, PageLimits, serve_pages};

pub use self::gate::Gate;
use crate::access::NotAnswered;
use crate::metrics::Metrics;
use crate::network::activity::{self, ActivityLayer};

/// Everything that is served: who may read what is decided by these.
pub const ROUTES: [Route; 4] = [
    Route { method: Method::GET, path: "/", page: Page::Index },
    Route { method: Method::GET, path: "/metrics", page: Page::Metrics },
    Route { method: Method::GET, path: "/healthz", page: Page::Health },
    Route { method: Method::GET, path: "/readyz", page: Page::Readiness },
];

/// Something that is served.
#[derive(Debug, Clone)]
pub struct Route {
    /// GET, which allows HEAD as well.
    pub method: Method,
    /// The whole of it.
    pub path: &'static str,
    page: Page,
}

#[derive(Debug, Clone, Copy)]
enum Page {
    Index,
    Metrics,
    Health,
    Readiness,
}

/// Whether the coordinator takes work: set once its store is open and its gRPC port listens, cleared when it
/// begins to shut down. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// From now on.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Clone)]
struct Shared {
    metrics: Metrics,
    readiness: Readiness,
}

/// Serves until `shutdown` ends; then answers what it has begun. The listener bounds how long a request may take to come:
/// a connection without a whole one is closed.
pub async fn serve(
    listener: Listener,
    metrics: Metrics,
    readiness: Readiness,
    gate: Arc<dyn Gate>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    serve_pages(listener, router(metrics, readiness, gate), PageLimits::default(), shutdown).await;
}

fn router(metrics: Metrics, readiness: Readiness, gate: Arc<dyn Gate>) -> Router {
    let mut router = Router::new();
    for Route { path, page, .. } in ROUTES {
        let answer = move |State(shared): State<Shared>| answer(page, shared);
        router = router.route(path, get(answer));
    }
    // The gate is asked for paths that are not there, too: strangers need not know which are.
    router.with_state(Shared { metrics, readiness }).layer(from_fn_with_state(gate, ask)).layer(ActivityLayer)
}

/// Lets a request in, or answers why not.
async fn ask(State(gate): State<Arc<dyn Gate>>, request: Request, next: Next) -> Response {
    let Some(peer) = activity::peer(request.extensions()).cloned() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    // Who may GET may ask for the head alone.
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    let allowed = gate.allowed(&peer, gate::bearer(request.headers()), method, request.uri().path()).await;
    match allowed {
        Ok(()) => next.run(request).await,
        Err(NotAnswered { status, text, retry_after }) => {
            let mut answer = (status, format!("{text}\n")).into_response();
            if status == StatusCode::UNAUTHORIZED {
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            if let Some(wait) = retry_after {
                answer.headers_mut().insert(header::RETRY_AFTER, wait.as_secs().into());
            }
            answer
        }
    }
}

async fn answer(page: Page, shared: Shared) -> Response {
    match page {
        Page::Index => {
            let text = include_str!("index.html").replace("{version}", ringtune_shared::version::VERSION);
            Html(text).into_response()
        }
        Page::Metrics => show_metrics(shared).await,
        Page::Health => "ok\n".into_response(),
        Page::Readiness if shared.readiness.get() => "ready\n".into_response(),
        Page::Readiness => (StatusCode::SERVICE_UNAVAILABLE, "starting or shutting down\n").into_response(),
    }
}

/// Not on the runtime's threads: it is much text, and the numbers of the process are read from files.
async fn show_metrics(shared: Shared) -> Response {
    shared.metrics.ready.set(shared.readiness.get().into());
    match tokio::task::spawn_blocking(move || shared.metrics.text()).await {
        Ok(Ok(text)) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
