//! Access tokens: who sends one, and for how long it is good.

use std::net::IpAddr;
use std::time::Duration;

use ringtune_security::{AccessToken, Caller as Seen, SecretHash, TokenId};
use tokio::sync::watch;

use super::caller::{Caller, Denied, Known, Proof, Reason};
use super::{Access, Error, Secured, now};
use crate::core::Time;
use crate::store::access::{TokenKind, TokenRecord};

/// A long call looks at the clock so often: one that is set shows by then.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// What the secret of a token that there is not is compared with.
const NO_SECRET: SecretHash = SecretHash([0; 32]);

/// Who makes a call.
pub struct Identified {
    /// The caller.
    pub caller: Caller,
    /// Where a token says so: until when.
    pub watch: Option<TokenWatch>,
}

/// Tells when a token is good no more.
pub struct TokenWatch {
    access: Access,
    id: TokenId,
    expires: Time,
    changed: watch::Receiver<()>,
}

impl Access {
    /// Who makes a call over a connection. `bearer`: the text of the token that came with it. Beside a certificate, and
    /// where nothing is authenticated, it does not count.
    ///
    /// # Errors
    /// The token is none of this cluster's or is good no more; too many wrong ones came from there; the store's.
    pub async fn identify(
        &self,
        seen: &Seen,
        address: IpAddr,
        bearer: Option<&str>,
    ) -> Result<Identified, Error> {
        let Some(secured) = &self.0.secured else {
            return Ok(Identified { caller: Caller::seen(seen), watch: None });
        };
        let caller = match Caller::seen(seen) {
            // All ports of a coordinator are protected, or none.
            Caller::Open => Caller::Anonymous,
            seen => seen,
        };
        match bearer {
            Some(text) if caller == Caller::Anonymous => self.by_token(secured, address, text).await,
            _ => Ok(Identified { caller, watch: None }),
        }
    }

    async fn by_token(&self, secured: &Secured, address: IpAddr, text: &str) -> Result<Identified, Error> {
        self.check_attempts(address)?;
        // From here on no end of it is missed.
        let changed = secured.tokens.subscribe();
        let token: AccessToken = text.parse().map_err(|error: ringtune_security::TokenError| {
            self.wrong(address, format!("authorization: {error}"))
        })?;
        let found = secured.store.token(token.id).await?.filter(|found| found.kind == TokenKind::Access);
        // As long as for a wrong secret: whether there is such a token is not told.
        let right = token.secret.matches(found.as_ref().map_or(&NO_SECRET, |found| &found.secret));
        if !found.as_ref().is_some_and(|found| found.is_good(now())) {
            secured.good_tokens().forget(token.id);
        }
        let Some(found) = found.filter(|_| right) else {
            let text = "the access token is none of this cluster's, or was revoked: ask for a new one";
            return Err(self.wrong(address, text).into());
        };
        check_time(&found, now())?;
        secured.good_tokens().remember(&found);
        let TokenRecord { id, expires, role, name, .. } = found;
        let proof = Proof::Token(id, expires);
        let caller = Caller::Known(Known { cluster: secured.pki.cluster(), role, name, proof });
        let watch = TokenWatch { access: self.clone(), id, expires, changed };
        Ok(Identified { caller, watch: Some(watch) })
    }
}

/// Refuses a token whose time is over.
fn check_time(token: &TokenRecord, now: Time) -> Result<(), Denied> {
    if token.is_good(now) { Ok(()) } else { Err(expired(token.expires)) }
}

fn expired(at: Time) -> Denied {
    Denied::new(Reason::Token, format!("the access token expired at {}: ask for a new one", super::shown(at)))
}

impl TokenWatch {
    /// Waits until the token is good no more, and says why.
    pub async fn over(mut self) -> Denied {
        loop {
            let left = u64::try_from(self.expires.0.saturating_sub(now().0)).unwrap_or(0);
            if left == 0 {
                return expired(self.expires);
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(left).min(LONGEST_WAIT)) => {}
                Ok(()) = self.changed.changed() => {
                    if !self.is_there().await {
                        return Denied::new(Reason::Token, "the access token was revoked");
                    }
                }
            }
        }
    }

    /// A token that cannot be looked up counts as revoked.
    async fn is_there(&self) -> bool {
        let Some(secured) = &self.access.0.secured else { return false };
        matches!(secured.store.token(self.id).await, Ok(Some(_)))
    }
}
