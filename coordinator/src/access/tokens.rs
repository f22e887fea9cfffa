//! Tokens: made, listed, revoked.

use std::time::Duration;

use ringtune_security::{AccessToken, JoinToken, Role, TokenId, identity};
use ringtune_shared::names;

use super::caller::Caller;
use super::{Access, Error, now, to_its_end};
use crate::core::Time;
use crate::store::access::{NewestFirst, TokenKind, TokenRecord};

/// Tokens that open something.
const MOST_TOKENS: u32 = 10_000;
/// How many may join with one.
const MOST_USES: u32 = 10_000;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewToken {
    /// What it is good for.
    pub kind: TokenKind,
    /// Of whoever has it.
    pub role: Role,
    /// Of whoever has it; of workers empty.
    pub name: String,
    /// For how long; none: an hour for a join token, 30 days for an access token.
    pub ttl: Option<Duration>,
    /// How many may join with it; 0: one.
    pub uses: u32,
}

/// A token that was made.
#[derive(Debug)]
pub struct Made {
    /// What is stored.
    pub record: TokenRecord,
    /// The line to hand on. It is secret, and kept nowhere.
    pub line: String,
}

impl Access {
    /// Makes a token. `caller`: who asks.
    ///
    /// # Errors
    /// A field; no join tokens where certificates come from elsewhere; there are too many; the store's.
    pub async fn create_token(&self, caller: &Caller, new: NewToken) -> Result<Made, Error> {
        let secured = self.part()?;
        let (ttl, uses) = check(&new)?;
        let (id, hash, line) = match new.kind {
            TokenKind::Join => {
                let root = secured.pki.root_hash().ok_or(Error::FromElsewhere)?;
                let token = JoinToken::new(new.role, root, secured.pki.cluster())?;
                (token.id, token.secret.hash(), token.reveal())
            }
            TokenKind::Access => {
                let token = AccessToken::new()?;
                (token.id, token.secret.hash(), token.reveal())
            }
        };
        let created = now();
        let ttl = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let record = TokenRecord {
            id,
            kind: new.kind,
            role: new.role,
            name: new.name,
            creator: caller.known().map(|known| known.name.clone()).unwrap_or_default(),
            created,
            expires: created.plus(ttl),
            uses_left: uses,
            secret: hash,
        };
        if !secured.store.add_token(&record, MOST_TOKENS).await? {
            let instead = "revoke some that nobody needs";
            return Err(Error::TooMany { most: MOST_TOKENS, what: "tokens", instead });
        }
        Ok(Made { record, line })
    }

    /// A page of the tokens that open something, the newest first.
    ///
    /// # Errors
    /// Nothing is authenticated here; the store's.
    pub async fn list_tokens(
        &self,
        after: Option<(Time, String)>,
        limit: u32,
    ) -> Result<Vec<TokenRecord>, Error> {
        Ok(self.part()?.store.list_tokens(&NewestFirst { after, limit, now: now() }).await?)
    }

    /// Forgets a token; calls that are under way with it end. Whether it was there.
    ///
    /// # Errors
    /// Nothing is authenticated here; the store's.
    pub async fn revoke_token(&self, id: TokenId) -> Result<bool, Error> {
        let access = self.clone();
        to_its_end(async move {
            let secured = access.part()?;
            let found = secured.store.remove_token(id).await?;
            secured.tokens.send_replace(());
            Ok(found)
        })
        .await
    }
}

/// How long a new token is good, and how often.
fn check(new: &NewToken) -> Result<(Duration, u32), Error> {
    match (new.role, new.name.is_empty()) {
        (Role::Worker, _) if new.kind == TokenKind::Access => {
            let allowed = "allowed for access tokens: submitter, observer, admin. Workers have certificates: give them a join token";
            return Err(Error::field("role", format!("got worker; {allowed}")));
        }
        (Role::Worker, false) => {
            let problem = format!(
                "got {:?}; allowed for workers: nothing, since their UUIDs are their names",
                shown(&new.name)
            );
            return Err(Error::field("name", problem));
        }
        (Role::Worker, true) => {}
        (role, _) => {
            identity::check_name(role, &new.name).map_err(|error| Error::field("name", error.to_string()))?;
            names::check(&new.name, usize::MAX).map_err(|problem| Error::field("name", problem))?;
        }
    }
    let (default, most, days) = match new.kind {
        TokenKind::Join => (60 * MINUTE, 90 * DAY, "90 days"),
        TokenKind::Access => (30 * DAY, 3650 * DAY, "10 years"),
    };
    let ttl = new.ttl.unwrap_or(default);
    if !(MINUTE..=most).contains(&ttl) {
        let problem = format!("got {} s; allowed: one minute to {days}", ttl.as_secs_f64());
        return Err(Error::field("ttl", problem));
    }
    let allowed = match new.kind {
        TokenKind::Join => 0..=MOST_USES,
        TokenKind::Access => 0..=0,
    };
    if !allowed.contains(&new.uses) {
        let range = match new.kind {
            TokenKind::Join => format!("0 (for one) to {MOST_USES}"),
            TokenKind::Access => "0, since an access token goes with any number of calls".to_owned(),
        };
        return Err(Error::field("uses", format!("got {}; allowed: {range}", new.uses)));
    }
    Ok((ttl, new.uses.max(1)))
}

fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(change: impl FnOnce(&mut NewToken)) -> &'static str {
        let (kind, role, name) = (TokenKind::Join, Role::Submitter, "ada".to_owned());
        let mut new = NewToken { kind, role, name, ttl: None, uses: 0 };
        change(&mut new);
        match check(&new) {
            Ok(_) => "none",
            Err(Error::Field { field, .. }) => field,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        let worker = |new: &mut NewToken| (new.role, new.name) = (Role::Worker, String::new());
        let access = |new: &mut NewToken| new.kind = TokenKind::Access;
        assert_eq!((field(|_| ()), field(worker), field(access)), ("none", "none", "none"));
        assert_eq!(field(|new| new.name.clear()), "name");
        assert_eq!(field(|new| new.name = "x".repeat(101)), "name");
        assert_eq!(field(|new| new.name = "a\nb".to_owned()), "name");
        assert_eq!(field(|new| new.name = "\u{202e}ada".to_owned()), "name");
        assert_eq!(field(|new| new.role = Role::Worker), "name");
        let worker_access = |new: &mut NewToken| {
            worker(new);
            access(new);
        };
        assert_eq!(field(worker_access), "role");
        for (ttl, expected) in [(MINUTE, "none"), (90 * DAY, "none"), (MINUTE / 2, "ttl"), (91 * DAY, "ttl")]
        {
            assert_eq!(field(|new| new.ttl = Some(ttl)), expected, "{ttl:?}");
        }
        let years = |new: &mut NewToken| (new.kind, new.ttl) = (TokenKind::Access, Some(3650 * DAY));
        assert_eq!(field(years), "none");
        assert_eq!(field(|new| new.uses = 10_000), "none");
        assert_eq!(field(|new| new.uses = 10_001), "uses");
        assert_eq!(field(|new| (new.kind, new.uses) = (TokenKind::Access, 1)), "uses");
    }

    #[test]
    fn what_is_not_said_is_an_hour_once_and_thirty_days() {
        let new = |kind| NewToken { kind, role: Role::Admin, name: "ada".to_owned(), ttl: None, uses: 0 };
        assert_eq!(check(&new(TokenKind::Join)).unwrap(), (60 * MINUTE, 1));
        assert_eq!(check(&new(TokenKind::Access)).unwrap(), (30 * DAY, 1));
    }
}
