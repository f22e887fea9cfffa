//! The HTTP port: `/metrics` for Prometheus and `/healthz` for supervisors.

mod metrics;

use std::sync::Arc;

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};

pub use metrics::{Metrics, MetricsError};

/// All pages by path.
pub(crate) fn pages() -> [(&'static str, MethodRouter<Arc<Metrics>>); 2] {
    [("/healthz", get(async || "ok\n")), ("/metrics", get(show_metrics))]
}

async fn show_metrics(State(metrics): State<Arc<Metrics>>) -> Response {
    match tokio::task::spawn_blocking(move || metrics.render()).await {
        Ok(Ok(text)) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
