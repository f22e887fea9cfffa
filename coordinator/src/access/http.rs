//! What the HTTP port asks.

use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use ringtune_security::Caller as Seen;

use super::caller::{Denied, Reason, decide};
use super::table::{self, Who};
use super::{Access, Error};

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotAnswered {
    /// 401 where nobody knows who calls, 403 where the caller may not, 429 where it asks too often.
    pub status: StatusCode,
    /// The reason, in words.
    pub text: String,
    /// When another try may help, if only time is missing.
    pub retry_after: Option<Duration>,
}

impl NotAnswered {
    /// With that text.
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), retry_after: None }
    }
}

impl Access {
    /// Whether a request to the HTTP port may be answered. `bearer`: the token that came with it.
    ///
    /// # Errors
    /// What is answered instead.
    pub async fn allowed(
        &self,
        seen: &Seen,
        address: SocketAddr,
        bearer: Option<&str>,
        method: &str,
        path: &str,
    ) -> Result<(), NotAnswered> {
        let row = table::http_row(method, path);
        if row.is_some_and(|row| row.who == Who::AsCalls) {
            // Each call has its turn and its decision.
            return Ok(());
        }
        let bearer = bearer.filter(|_| row.is_none_or(|row| row.who != Who::Everybody));
        let decided = match self.turn(seen, address.ip(), bearer).await {
            Err(denied) => Err(denied),
            Ok(()) => match self.identify(seen, address.ip(), bearer).await {
                Ok(identified) => decide(row, &identified.caller),
                Err(Error::Denied(denied)) => Err(denied),
                Err(error) => {
                    return Err(NotAnswered::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()));
                }
            },
        };
        decided.map_err(|denied| {
            self.count(&denied);
            answer(denied)
        })
    }
}

fn answer(denied: Denied) -> NotAnswered {
    let status = match denied.reason {
        Reason::NoIdentity | Reason::Certificate | Reason::Token => StatusCode::UNAUTHORIZED,
        Reason::TooManyTokens | Reason::TooManyCalls => StatusCode::TOO_MANY_REQUESTS,
        Reason::Role | Reason::Worker | Reason::Owner => StatusCode::FORBIDDEN,
        Reason::Method => StatusCode::NOT_FOUND,
    };
    NotAnswered { status, text: denied.text, retry_after: denied.retry_after }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use futures::stream::FuturesUnordered;
    use ringtune_security::{Identity, Role};

    use super::super::tests::Stage;
    use super::*;
    use crate::metrics::Metrics;
    use crate::settings::LimitSettings;
    use crate::store::access::TokenKind;

    async fn status(access: &Access, seen: &Seen, bearer: Option<&str>, method: &str, path: &str) -> u16 {
        let from = SocketAddr::from(([10, 0, 0, 1], 1));
        let answer = access.allowed(seen, from, bearer, method, path).await;
        answer.map_or_else(|refused| refused.status.as_u16(), |()| 200)
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
        let plain = Access::plain(Metrics::new().unwrap(), &LimitSettings::default());
        let events = "/api/events";
        assert_eq!(status(access, &Seen::Anonymous, None, "GET", events).await, 200, "its calls decide");
        for path in ["/metrics", "/nothing"] {
            assert_eq!(status(&plain, &Seen::Open, None, "GET", path).await, 200, "the router answers");
        }
    }
    #[tokio::test]
    async fn who_asks_too_often_is_told_when_to_ask_again() {
        let limits = LimitSettings { calls_per_second: 1, ..LimitSettings::default() };
        let stage = Stage::within(&limits).await;
        let from = SocketAddr::from(([10, 0, 0, 1], 1));
        let asked = (0..100).map(|_| stage.access.allowed(&Seen::Anonymous, from, None, "GET", "/healthz"));
        let mut asked = asked.collect::<FuturesUnordered<_>>();
        let refused = loop {
            if let Err(refused) = asked.next().await.unwrap() {
                break refused;
            }
        };
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.retry_after, Some(Duration::from_secs(5)));
    }
}
