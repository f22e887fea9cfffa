//! How many calls a second a caller may make. Asked first of all: what a call too many costs is little.

use std::net::IpAddr;
use std::sync::{MutexGuard, PoisonError};

use ringtune_security::{AccessToken, Caller as Seen, CountedAs};

use super::caller::{Denied, Reason};
use super::good_tokens::GoodTokens;
use super::{Access, Secured};

impl Access {
    /// Waits for the turn of a call. `bearer`: as for [`Access::identify`]. Whoever comes with a token is counted as who they
    /// are once it was found to be good, and by their address before: for strangers nothing is looked up.
    ///
    /// # Errors
    /// Its caller makes too many.
    pub async fn turn(&self, seen: &Seen, address: IpAddr, bearer: Option<&str>) -> Result<(), Denied> {
        let Some(whose) = self.counted_as(seen, address, bearer) else { return Ok(()) };
        self.0.calls.turn(&whose).await.map_err(|error| {
            let text = format!("{error}. The coordinator's limits.calls_per_second allows no more");
            Denied::until_later(Reason::TooManyCalls, text, error.retry_after())
        })
    }

    fn counted_as(&self, seen: &Seen, address: IpAddr, bearer: Option<&str>) -> Option<CountedAs> {
        let holder = match (&self.0.secured, bearer, seen) {
            (Some(secured), Some(text), Seen::Anonymous) => secured.good_holder(text),
            _ => None,
        };
        holder.or_else(|| CountedAs::of(seen, address))
    }
}

impl Secured {
    fn good_holder(&self, token: &str) -> Option<CountedAs> {
        let token: AccessToken = token.parse().ok()?;
        self.good_tokens().holder(&token).map(|(role, name)| CountedAs::member(role, name))
    }

    pub(super) fn good_tokens(&self) -> MutexGuard<'_, GoodTokens> {
        self.good_tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use ringtune_security::Role;

    use super::super::tests::Stage;
    use super::*;
    use crate::settings::LimitSettings;
    use crate::store::access::TokenKind;

    #[tokio::test]
    async fn a_token_counts_as_its_holder_once_it_was_found_good() {
        let stage = Stage::new().await;
        let access = &stage.access;
        let here = IpAddr::from([10, 0, 0, 1]);
        let line = stage.token(TokenKind::Access, Role::Observer, 0).await;
        let token: AccessToken = line.parse().unwrap();
        let counted = |seen: &Seen, bearer| access.counted_as(seen, here, bearer).unwrap().to_string();
        let identify = || access.identify(&Seen::Anonymous, here, Some(&line));
        assert_eq!(counted(&Seen::Anonymous, Some(&line)), "10.0.0.1");
        identify().await.unwrap();
        assert_eq!(counted(&Seen::Anonymous, Some(&line)), "observer ada");
        let guess = AccessToken { id: token.id, ..AccessToken::new().unwrap() }.reveal();
        for stranger in [None, Some("nonsense"), Some(guess.as_str())] {
            assert_eq!(counted(&Seen::Anonymous, stranger), "10.0.0.1");
        }
        assert!(access.identify(&Seen::Anonymous, here, Some(&guess)).await.is_err());
        assert_eq!(counted(&Seen::Anonymous, Some(&line)), "observer ada", "no guess makes it forgotten");
        access.revoke_token(token.id).await.unwrap();
        assert!(identify().await.is_err());
        assert_eq!(counted(&Seen::Anonymous, Some(&line)), "10.0.0.1");
    }

    #[tokio::test]
    async fn a_call_too_many_is_denied_with_the_setting_that_allows_no_more() {
        let stage = Stage::within(&LimitSettings { calls_per_second: 1, ..LimitSettings::default() }).await;
        let here = IpAddr::from([10, 0, 0, 1]);
        let turns = (0..100).map(|_| stage.access.turn(&Seen::Anonymous, here, None));
        let first =
            futures::future::select_ok(turns.map(|turn| Box::pin(async { turn.await.err().ok_or(()) })));
        let (denied, _) = first.await.unwrap();
        assert_eq!(denied.reason, Reason::TooManyCalls);
        assert!(
            denied.text.contains("limits.calls_per_second") && denied.text.contains("10.0.0.1"),
            "{denied}"
        );
        assert_eq!(denied.retry_after.unwrap().as_secs(), 5);
        stage.access.turn(&Seen::Anonymous, IpAddr::from([10, 0, 0, 2]), None).await.unwrap();
    }
}
