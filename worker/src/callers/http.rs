//! The same for the pages of the HTTP port.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    body::Body,
    extract::{ConnectInfo, Request, State, connect_info::Connected},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse as _, Response},
    serve::IncomingStream,
};
use ringtune_security::{Connection, Listener, Peer};

use super::{
    grpc::Held,
    table::{decide, page},
};
use crate::http::Metrics;

/// Connections with whoever is on their other side, for axum.
pub(crate) struct GuardPages(pub(crate) Listener);

impl axum::serve::Listener for GuardPages {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let connection = self.0.accept().await;
        let address = connection.peer().address;
        (connection, address)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        Ok(self.0.local_addr())
    }
}

/// Who is on the other side.
#[derive(Clone, Debug)]
pub(crate) struct PeerInfo(Peer);

impl Connected<IncomingStream<'_, GuardPages>> for PeerInfo {
    fn connect_info(stream: IncomingStream<'_, GuardPages>) -> Self {
        Self(stream.io().peer().clone())
    }
}

/// Lets a request in, or not, and keeps its connection while it lasts.
pub(crate) async fn guard(
    State(metrics): State<Arc<Metrics>>,
    ConnectInfo(PeerInfo(peer)): ConnectInfo<PeerInfo>,
    request: Request,
    next: Next,
) -> Response {
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
