//! Who may read what on the HTTP port.

use axum::http::{HeaderMap, Method, header};
use ringtune_security::Peer;

use crate::access::{Access, NotAnswered};

/// Decides about requests.
#[async_trait::async_trait]
pub trait Gate: Send + Sync + 'static {
    /// Whether a caller may have what it asks for. `bearer`: the token that it sent, if it did.
    ///
    /// # Errors
    /// What is answered instead.
    async fn allowed(
        &self,
        peer: &Peer,
        bearer: Option<&str>,
        method: &Method,
        path: &str,
    ) -> Result<(), NotAnswered>;
}

/// The table of who may call what decides.
#[async_trait::async_trait]
impl Gate for Access {
    async fn allowed(
        &self,
        peer: &Peer,
        bearer: Option<&str>,
        method: &Method,
        path: &str,
    ) -> Result<(), NotAnswered> {
        self.allowed(&peer.caller, peer.address, bearer, method.as_str(), path).await
    }
}

/// The token of `Authorization: Bearer …`.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_found_whatever_the_case_of_its_scheme() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer rta1.x").as_deref(), Some("rta1.x"));
        assert_eq!(of("bearer  rta1.x ").as_deref(), Some("rta1.x"));
        assert_eq!((of("Basic rta1.x"), of("rta1.x")), (None, None));
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
