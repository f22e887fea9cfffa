//! What the HTTP port asks.

use std::net::SocketAddr;

use http::StatusCode;
use ringtune_security::Caller as Seen;

use super::caller::{Denied, Reason, decide};
use super::table::{self, Who};
use super::{Access, Error};

impl Access {
    /// Whether a request to the HTTP port may be answered. `bearer`: the token that came with it.
    ///
    /// # Errors
    /// The status and the text of the answer.
    pub async fn allowed(
        &self,
        seen: &Seen,
        address: SocketAddr,
        bearer: Option<&str>,
        method: &str,
        path: &str,
    ) -> Result<(), (StatusCode, String)> {
        let row = table::http_row(method, path);
        let bearer = bearer.filter(|_| row.is_none_or(|row| row.who != Who::Everybody));
        let decided = match self.identify(seen, address.ip(), bearer).await {
            Ok(identified) => decide(row, &identified.caller),
            Err(Error::Denied(denied)) => Err(denied),
            Err(error) => return Err((StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
        };
        decided.map_err(|denied| {
            self.count(&denied);
            answer(denied)
        })
    }
}

fn answer(denied: Denied) -> (StatusCode, String) {
    let status = match denied.reason {
        Reason::NoIdentity | Reason::Certificate | Reason::Token => StatusCode::UNAUTHORIZED,
        Reason::TooManyTokens => StatusCode::TOO_MANY_REQUESTS,
        Reason::Role | Reason::Worker | Reason::Owner => StatusCode::FORBIDDEN,
        Reason::Method => StatusCode::NOT_FOUND,
    };
    (status, denied.text)
}

#[cfg(test)]
mod tests {
    use ringtune_security::{Identity, Role};

    use super::super::tests::Stage;
    use super::*;
    use crate::metrics::Metrics;
    use crate::store::access::TokenKind;

    async fn status(access: &Access, seen: &Seen, bearer: Option<&str>, method: &str, path: &str) -> u16 {
        let from = SocketAddr::from(([10, 0, 0, 1], 1));
        let answer = access.allowed(seen, from, bearer, method, path).await;
        answer.map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    #[tokio::test]
    async fn metrics_are_for_those_who_look_and_probes_for_all() {
        let stage = Stage::new().await;
        let access = &stage.access;
        for path in ["/", "/healthz", "/readyz"] {
            assert_eq!(status(access, &Seen::Anonymous, None, "GET", path).await, 200, "{path}");
            assert_eq!(status(access, &Seen::Anonymous, Some("nonsense"), "HEAD", path).await, 200, "{path}");
        }
        assert_eq!(status(access, &Seen::Anonymous, None, "GET", "/metrics").await, 401);
        assert_eq!(status(access, &Seen::Anonymous, Some("nonsense"), "GET", "/metrics").await, 401);
        for (role, expected) in [(Role::Observer, 200), (Role::Admin, 200), (Role::Submitter, 403)] {
            let token = stage.token(TokenKind::Access, role, 0).await;
            assert_eq!(status(access, &Seen::Anonymous, Some(&token), "GET", "/metrics").await, expected);
            let (cluster, name, serial) = (stage.pki.cluster(), "ada".to_owned(), "1".to_owned());
            let known = Seen::Known(Identity { cluster, role, name, serial });
            assert_eq!(status(access, &known, None, "GET", "/metrics").await, expected, "{role}");
            assert_eq!(status(access, &known, None, "GET", "/nothing").await, 404);
            assert_eq!(status(access, &known, None, "POST", "/metrics").await, 404);
        }
        assert_eq!(status(access, &Seen::Anonymous, None, "GET", "/nothing").await, 401);
        let plain = Access::plain(Metrics::new().unwrap());
        for path in ["/metrics", "/nothing"] {
            assert_eq!(status(&plain, &Seen::Open, None, "GET", path).await, 200, "the router answers");
        }
    }
}
