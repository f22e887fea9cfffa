//! Cache of access tokens that were good when last seen: it tells whose calls to count before the store is asked.

use std::collections::HashMap;

use ringtune_security::{AccessToken, Role, SecretHash, TokenId};

use crate::store::access::TokenRecord;

/// Tokens that are remembered; one more takes the place of any other.
const MOST: usize = 4096;

/// Good for counting alone: nobody is let in by it.
#[derive(Debug, Default)]
pub(super) struct GoodTokens(HashMap<TokenId, Holder>);

#[derive(Debug)]
struct Holder {
    secret: SecretHash,
    role: Role,
    name: String,
}

impl GoodTokens {
    /// Who has this token, if it was good when it came last.
    pub(super) fn holder(&self, token: &AccessToken) -> Option<(Role, &str)> {
        let holder = self.0.get(&token.id)?;
        token.secret.matches(&holder.secret).then_some((holder.role, holder.name.as_str()))
    }

    /// Remembers a good token.
    pub(super) fn remember(&mut self, token: &TokenRecord) {
        if self.0.contains_key(&token.id) {
            return;
        }
        if self.0.len() >= MOST {
            let any = self.0.keys().next().copied();
            any.map(|any| self.0.remove(&any));
        }
        let TokenRecord { id, role, name, secret, .. } = token.clone();
        self.0.insert(id, Holder { secret, role, name });
    }

    /// Forgets a token that is not good, or no longer.
    pub(super) fn forget(&mut self, token: TokenId) {
        self.0.remove(&token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Time;
    use crate::store::access::TokenKind;

    fn record(token: &AccessToken, name: &str) -> TokenRecord {
        TokenRecord {
            id: token.id,
            kind: TokenKind::Access,
            role: Role::Observer,
            name: name.to_owned(),
            creator: String::new(),
            created: Time(0),
            expires: Time(1),
            uses_left: 1,
            secret: token.secret.hash(),
        }
    }

    #[test]
    fn a_holder_is_known_by_the_whole_token_until_it_is_forgotten() {
        let (mut tokens, token) = (GoodTokens::default(), AccessToken::new().unwrap());
        assert_eq!(tokens.holder(&token), None);
        tokens.remember(&record(&token, "ada"));
        assert_eq!(tokens.holder(&token), Some((Role::Observer, "ada")));
        let guess = AccessToken { id: token.id, ..AccessToken::new().unwrap() };
        assert_eq!(tokens.holder(&guess), None, "the id alone is no proof");
        tokens.forget(token.id);
        assert_eq!(tokens.holder(&token), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut tokens = GoodTokens::default();
        for _ in 0..MOST + 10 {
            tokens.remember(&record(&AccessToken::new().unwrap(), "ada"));
        }
        let last = AccessToken::new().unwrap();
        tokens.remember(&record(&last, "bob"));
        assert_eq!((tokens.0.len(), tokens.holder(&last)), (MOST, Some((Role::Observer, "bob"))));
    }
}
