//! The same for the pages of the HTTP port.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use ringtune_security::Peer;

use super::{
    grpc::Held,
    table::{decide, page},
};
use crate::http::Metrics;

/// Lets a request in, or not, and keeps its connection while it lasts.
pub(crate) async fn guard(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    // The server says for each request who makes it.
    let Some(peer) = request.extensions().get::<Peer>().cloned() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let under_way = peer.activity.begin();
    let path = request.uri().path();
    let response = match decide(&peer.caller, path, page(path)) {
        Ok(()) => next.run(request).await,
        Err(denied) => {
            metrics.denied_calls.inc();
            let code =
                if denied.is_about_identity() { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
            (code, format!("{denied}\n")).into_response()
        }
    };
    response.map(|body| Body::new(Held { body, _under_way: Some(under_way) }))
}
