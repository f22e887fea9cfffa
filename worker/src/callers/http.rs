//! The same for the pages of the HTTP port.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    body::Body,
    extract::{ConnectInfo, Request, State, connect_info::Connected},
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
    serve::IncomingStream,
};
use ringtune_security::{CallRates, Connection, CountedAs, Listener, Peer, TooManyCalls};

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

/// What the guard knows.
#[derive(Clone, Debug)]
pub(crate) struct PageGuard {
    /// Counts those that are not let in.
    pub(crate) metrics: Arc<Metrics>,
    /// How many each caller may make.
    pub(crate) rates: CallRates,
}

/// Lets a request in, or not, and keeps its connection while it lasts.
pub(crate) async fn guard(
    State(PageGuard { metrics, rates }): State<PageGuard>,
    ConnectInfo(PeerInfo(peer)): ConnectInfo<PeerInfo>,
    request: Request,
    next: Next,
) -> Response {
    let under_way = peer.activity.begin();
    let response = match judge(&peer, &rates, request.uri().path()).await {
        Ok(()) => next.run(request).await,
        Err(response) => {
            metrics.denied_calls.inc();
            response
        }
    };
    response.map(|body| Body::new(Held { body, _under_way: Some(under_way) }))
}

/// Waits for the request's turn, and then decides.
async fn judge(peer: &Peer, rates: &CallRates, path: &str) -> Result<(), Response> {
    if let Some(whose) = CountedAs::of(&peer.caller, peer.address.ip()) {
        rates.turn(&whose).await.map_err(|error| too_many(&error))?;
    }
    decide(&peer.caller, path, page(path)).map_err(|denied| {
        let code = if denied.is_about_identity() { StatusCode::UNAUTHORIZED } else { StatusCode::FORBIDDEN };
        (code, format!("{denied}\n")).into_response()
    })
}

fn too_many(error: &TooManyCalls) -> Response {
    let wait = [(header::RETRY_AFTER, error.retry_after().as_secs().to_string())];
    (StatusCode::TOO_MANY_REQUESTS, wait, format!("{error}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use ringtune_security::Role;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_asks_too_often_is_told_when_to_ask_again() {
        let (rates, ada) = (CallRates::per_second(1), CountedAs::member(Role::Observer, "ada"));
        let mut turns = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (rates, ada) = (rates.clone(), ada.clone());
            turns.spawn(async move { rates.turn(&ada).await });
        }
        let error = turns.join_all().await.into_iter().find_map(Result::err).unwrap();
        let answer = too_many(&error);
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.headers()[header::RETRY_AFTER], "5");
    }
}
