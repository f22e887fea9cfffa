//! The HTTP port: `/metrics`, `/sd/workers`, `/metrics/workers/ID` for Prometheus, `/healthz`, `/readyz` for probes, and for people the
//! page with its API, which are ringtune-web's.

#[cfg(test)]
mod tests;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    Router,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use ringtune_security::{Listener, PageLimits, serve_pages};
use ringtune_shared::ids::WorkerId;
use ringtune_web::guard::{Names, guard};

use crate::access::{Access, NotAnswered};
use crate::metrics::Metrics;
use crate::network::activity::{self, ActivityLayer};
use crate::scrapes::{self, Scrapes};

/// What is served beside the page.
const PAGES: [(&str, Page); 3] =
    [("/metrics", Page::Metrics), ("/healthz", Page::Health), ("/readyz", Page::Readiness)];
/// And what goes through to workers.
const WORKERS: [&str; 2] = ["/sd/workers", "/metrics/workers/{worker}"];
/// The content type of Prometheus' text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything that is served, method and path: who may have what is decided by these. GET allows HEAD as well.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    let own = PAGES.iter().map(|(path, _)| *path).chain(WORKERS);
    own.map(|path| ("GET", path)).chain(ringtune_web::ROUTES)
}

#[derive(Debug, Clone, Copy)]
enum Page {
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
    scrapes: Scrapes,
}

/// What the port is made from.
pub struct Options {
    /// What is counted.
    pub metrics: Metrics,
    /// Whether work is taken.
    pub readiness: Readiness,
    /// The workers, to ask what they count.
    pub scrapes: Scrapes,
    /// Who may have what.
    pub access: Access,
    /// By which names this host is reached.
    pub names: Names,
    /// The page and its API. Their shutdown is the port's.
    pub web: ringtune_web::Options,
}

/// Serves until the shutdown; then answers what it has begun. The listener bounds how long a request may take to come:
/// a connection without a whole one is closed.
///
/// # Errors
/// The API's description cannot be read.
pub async fn serve(listener: Listener, options: Options) -> Result<(), ringtune_web::Error> {
    let shutdown = options.web.shutdown.clone();
    serve_pages(listener, router(options)?, PageLimits::default(), shutdown.cancelled_owned()).await;
    Ok(())
}

fn router(options: Options) -> Result<Router, ringtune_web::Error> {
    let Options { metrics, readiness, scrapes, access, names, web } = options;
    let mut router = Router::new();
    for (path, page) in PAGES {
        let answer = move |State(shared): State<Shared>| answer(page, shared);
        router = router.route(path, get(answer));
    }
    let [list, of_worker] = WORKERS;
    router = router.route(list, get(list_workers)).route(of_worker, get(metrics_of_worker));
    // Also for paths that are not there: strangers need not know which are.
    Ok(router
        .with_state(Shared { metrics, readiness, scrapes })
        .merge(ringtune_web::router(web)?)
        .layer(from_fn_with_state(access, check_access))
        .layer(from_fn_with_state(names, guard))
        .layer(ActivityLayer))
}

/// Passes a request on if its caller may make it; else answers with the refusal.
async fn check_access(State(access): State<Access>, request: Request, next: Next) -> Response {
    let Some(peer) = activity::peer(request.extensions()).cloned() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    // Who may GET may ask for the head alone.
    let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
    let (bearer, path) = (bearer(request.headers()), request.uri().path());
    match access.allowed(&peer.caller, peer.address, bearer, method.as_str(), path).await {
        Ok(()) => next.run(request).await,
        Err(NotAnswered { status, text, retry_after }) => {
            // What programs ask is answered to programs.
            let is_api = request.method() == Method::POST || request.uri().path().starts_with("/api/");
            let mut answer = match is_api {
                true => ringtune_web::answer::refused(status, &text),
                false => (status, format!("{text}\n")).into_response(),
            };
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

/// The token of `Authorization: Bearer …`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

async fn answer(page: Page, shared: Shared) -> Response {
    match page {
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
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// All workers that can be asked, for Prometheus' service discovery: each by the name by which this port was called.
async fn list_workers(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else {
        return (StatusCode::BAD_REQUEST, "Host: is missing; allowed: once\n").into_response();
    };
    match serde_json::to_string(&shared.scrapes.targets(host)) {
        Ok(targets) => ([(header::CONTENT_TYPE, "application/json")], targets).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn metrics_of_worker(State(shared): State<Shared>, Path(worker): Path<String>) -> Response {
    let Ok(worker) = worker.parse::<WorkerId>() else {
        return (StatusCode::NOT_FOUND, "the worker's id: allowed: a UUID\n").into_response();
    };
    match shared.scrapes.of(worker).await {
        Ok(text) => ([(header::CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => {
            let status = match error {
                scrapes::Error::Unknown => StatusCode::NOT_FOUND,
                scrapes::Error::Gone | scrapes::Error::Busy => StatusCode::SERVICE_UNAVAILABLE,
                scrapes::Error::Late => StatusCode::GATEWAY_TIMEOUT,
            };
            (status, format!("{error}\n")).into_response()
        }
    }
}
