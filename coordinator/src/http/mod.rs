//! The HTTP port: `/`, `/metrics`, `/healthz`, `/readyz`. For people, Prometheus and probes; jobs are gRPC's.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{Html, IntoResponse},
    routing::get,
};
use tokio::net::TcpListener;

use crate::metrics::Metrics;

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

/// Serves until `shutdown` ends; then answers what it has begun.
///
/// # Errors
/// The listener's.
pub async fn serve(
    listener: TcpListener,
    metrics: Metrics,
    readiness: Readiness,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(metrics, readiness)).with_graceful_shutdown(shutdown).await
}

fn router(metrics: Metrics, readiness: Readiness) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(Shared { metrics, readiness })
}

async fn index() -> Html<String> {
    Html(include_str!("index.html").replace("{version}", ringtune_shared::version::VERSION))
}

async fn metrics_text(State(shared): State<Shared>) -> axum::response::Response {
    match shared.metrics.text() {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn readyz(State(shared): State<Shared>) -> (StatusCode, &'static str) {
    if shared.readiness.get() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "starting or shutting down\n")
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn probes_and_metrics_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Readiness::default();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let metrics = Metrics::new().unwrap();
        let served = tokio::spawn(serve(listener, metrics, readiness.clone(), async {
            let _ = stopped.await;
        }));
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        readiness.set(true);
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/metrics").await.contains("ringtune_steps_total 0"));
        assert!(get(address, "/").await.contains(ringtune_shared::version::VERSION));
        assert!(get(address, "/other").await.starts_with("HTTP/1.1 404"));
        stop.send(()).unwrap();
        served.await.unwrap().unwrap();
    }
}
