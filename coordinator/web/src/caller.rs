//! In whose name a request is made.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::response::Response;
use http::header::{AUTHORIZATION, SET_COOKIE};
use http::request::Parts;
use ringtune_security::{Caller as Seen, Peer};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};

use crate::{answer, cookie};

/// Whoever makes a request: who the connection says, and the token that came with it.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// None in tests that have no connection.
    peer: Option<Peer>,
    /// The whole header of a call.
    authorization: Option<Vec<u8>>,
    /// The token came as a cookie.
    by_cookie: bool,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let peer = parts.extensions.get::<Peer>().cloned();
        // What a program says on purpose counts before what a browser sends by itself.
        let header = parts.headers.get(AUTHORIZATION).map(|header| header.as_bytes().to_vec());
        let by_header = header.is_some();
        let authorization = header.or_else(|| cookie::token(&parts.headers).map(bearer));
        Ok(Self { peer, by_cookie: !by_header && authorization.is_some(), authorization })
    }
}

fn bearer(token: &str) -> Vec<u8> {
    format!("Bearer {token}").into_bytes()
}

impl Caller {
    /// The same connection with another token.
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { peer: self.peer.clone(), authorization: Some(bearer(token)), by_cookie: false }
    }

    /// Whether the connection shows a certificate.
    pub(crate) fn is_certified(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| matches!(peer.caller, Seen::Known(_) | Seen::Refused(_)))
    }

    /// Whether there is nothing that could say who it is.
    pub(crate) fn is_nobody(&self) -> bool {
        self.authorization.is_none() && !self.is_certified()
    }

    /// A call in its name.
    pub(crate) fn call<T>(&self, message: T) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        if let Some(peer) = &self.peer {
            request.extensions_mut().insert(peer.clone());
        }
        if let Some(authorization) = &self.authorization {
            let value = MetadataValue::try_from(authorization.as_slice())
                .map_err(|_| Status::unauthenticated("the token has characters that no token has"))?;
            request.metadata_mut().insert("authorization", value);
        }
        Ok(request)
    }

    /// The answer to a request that failed. A cookie whose token is good no more goes, so that it is not sent again: each
    /// would count as a wrong token.
    pub(crate) fn failed(&self, status: &Status) -> Response {
        let mut answer = answer::error(status);
        if self.has_stale_cookie(status) {
            answer.headers_mut().insert(SET_COOKIE, cookie::gone());
        }
        answer
    }

    /// Whether a call failed because the cookie's token is good no more.
    pub(crate) fn has_stale_cookie(&self, status: &Status) -> bool {
        self.by_cookie && status.code() == Code::Unauthenticated
    }
}
