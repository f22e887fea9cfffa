//! Authorisation of the HTTP port's pages.

use std::{net::IpAddr, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use ringtune_security::{CallRates, Caller, CountedAs, Peer, TooManyCalls};

use super::{
    grpc::Held,
    table::{Who, decide, page},
};
use crate::http::Metrics;

/// The guard's state.
#[derive(Clone, Debug)]
pub(crate) struct PageGuard {
    /// Counts those that are not let in.
    pub(crate) metrics: Arc<Metrics>,
    /// Rate limits of each caller.
    pub(crate) rates: CallRates,
}

/// Lets a request in, or not, and keeps its connection while it lasts.
pub(crate) async fn guard(
    State(PageGuard { metrics, rates }): State<PageGuard>,
    request: Request,
    next: Next,
) -> Response {
    // The server says for each request who makes it.
    let Some(peer) = request.extensions().get::<Peer>().cloned() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let under_way = peer.activity.begin();
    let for_everybody = matches!(page(request.uri().path()), Who::Everybody);
    let judged = match !for_everybody && is_rebound(&peer.caller, peer.address.ip(), request.headers()) {
        true => Err((StatusCode::MISDIRECTED_REQUEST, "Host: allowed here: localhost and addresses\n")
            .into_response()),
        false => judge(&peer, &rates, request.uri().path()).await,
    };
    let response = match judged {
        Ok(()) => next.run(request).await,
        Err(response) => {
            metrics.denied_calls.inc();
            response
        }
    };
    response.map(|body| Body::new(Held { body, _under_way: Some(under_way) }))
}

/// Whether a web site may have let its own name point to this machine, to read in a browser here what is for everybody here alone.
/// Such a name is no address, nor `localhost`.
fn is_rebound(caller: &Caller, from: IpAddr, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let is_own = host.is_some_and(|host| {
        let name = host.host().trim_matches(['[', ']']);
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
    });
    matches!(caller, Caller::Open) && from.is_loopback() && !is_own
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

    #[test]
    fn no_site_reads_what_only_those_on_this_machine_may() {
        let rebound = |host: &str, address: &str, caller| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            is_rebound(&caller, address.parse().unwrap(), &headers)
        };
        for host in ["evil.example:7081", "127.0.0.1.evil.example", "localhost.evil"] {
            assert!(rebound(host, "127.0.0.1", Caller::Open), "{host}");
            assert!(
                !rebound(host, "10.0.0.9", Caller::Open) && !rebound(host, "127.0.0.1", Caller::Anonymous)
            );
        }
        for host in ["localhost:7081", "LOCALHOST", "127.0.0.1:7081", "[::1]:7081"] {
            assert!(!rebound(host, "127.0.0.1", Caller::Open), "{host}");
        }
    }

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
