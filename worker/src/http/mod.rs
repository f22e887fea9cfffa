//! The HTTP port: `/metrics` for Prometheus and `/healthz` for whoever restarts dead processes.

mod metrics;

use std::{future::Future, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

pub use metrics::{Metrics, MetricsError};

/// Serves until `end` completes.
pub async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    end: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, router(metrics)).with_graceful_shutdown(end).await
}

fn router(metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/metrics", get(show_metrics))
        .with_state(metrics)
}

async fn show_metrics(State(metrics): State<Arc<Metrics>>) -> Response {
    match metrics.render() {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
