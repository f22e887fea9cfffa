//! Who may join or call: tokens, the certificates that were given, and who is revoked.

#[cfg(test)]
pub(crate) mod conformance;

use std::collections::BTreeMap;

use async_trait::async_trait;
use ringtune_security::{Revoked, Role, SecretHash, TokenId};

use super::Error;
use crate::core::Time;

/// What a token is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// It is exchanged for a certificate.
    Join,
    /// It goes with every call.
    Access,
}

impl TokenKind {
    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Access => "access",
        }
    }

    /// The kind with that word.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Join, Self::Access].into_iter().find(|kind| kind.as_str() == name)
    }
}

/// A token, with the hash of its secret.
#[derive(Debug, Clone)]
pub struct TokenRecord {
    /// Its id.
    pub id: TokenId,
    /// What it is good for.
    pub kind: TokenKind,
    /// Of whoever has it.
    pub role: Role,
    /// Of whoever has it. Of a worker's token empty.
    pub name: String,
    /// Who made it.
    pub creator: String,
    /// When.
    pub created: Time,
    /// From then on it opens nothing.
    pub expires: Time,
    /// How many may still join with it; of an access token 1.
    pub uses_left: u32,
    /// What its secret is compared with.
    pub secret: SecretHash,
}

impl TokenRecord {
    /// Whether it opens anything.
    pub fn is_good(&self, now: Time) -> bool {
        self.expires > now && self.uses_left > 0
    }
}

/// A certificate that the cluster's authority gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRecord {
    /// Its serial number in lower-case hex.
    pub serial: String,
    /// Whose it is.
    pub role: Role,
    /// Whose it is; of a worker its UUID.
    pub name: String,
    /// When it was given.
    pub created: Time,
    /// From then on it is worth nothing.
    pub expires: Time,
    /// The number of the root that signed it.
    pub root: u32,
    /// Since when it is revoked.
    pub revoked: Option<Time>,
    /// Of its public key.
    pub key_sha256: [u8; 32],
}

/// How many certificates one key gets for one token.
pub const MOST_REPEATS: u32 = 20;

/// What became of a try to join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// The certificate is stored, and the token has one use less.
    Done,
    /// The token opens nothing any more.
    NoToken,
    /// A worker of this id has a certificate that is good until then.
    Held(Time),
    /// The member was revoked then, and the token is not newer.
    Revoked(Time),
}

/// What a revocation took from a member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberRevoked {
    /// How many certificates it has that have not expired, those revoked before included.
    pub certificates: u64,
    /// The access tokens that are gone.
    pub tokens: Vec<TokenId>,
}

/// A page of what is listed by time, the newest first. What was made at one time is in the order of the names, backwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewestFirst {
    /// Only what is behind this one: when it was made, and its id or serial number.
    pub after: Option<(Time, String)>,
    /// The page size.
    pub limit: u32,
    /// What has expired by now is left out.
    pub now: Time,
}

/// Tokens, certificates and who is revoked. Whatever a call returned from is on disk, and what failed left nothing.
#[async_trait]
pub trait AccessStore: Send + Sync + 'static {
    /// Keeps a new token, unless `most` open something when it is made. Whether it did.
    async fn add_token(&self, token: &TokenRecord, most: u32) -> Result<bool, Error>;

    /// A token that was not removed, whether it still opens something or not.
    async fn token(&self, id: TokenId) -> Result<Option<TokenRecord>, Error>;

    /// A page of the tokens that open something.
    async fn list_tokens(&self, page: &NewestFirst) -> Result<Vec<TokenRecord>, Error>;

    /// Forgets a token. Whether it was there.
    async fn remove_token(&self, id: TokenId) -> Result<bool, Error>;

    /// Takes one use of a join token for a certificate, and stores that: both or nothing. A person whose name was revoked
    /// before the token was made is let in again.
    ///
    /// Who joined with this token by this key already, and has the certificate still, gets another one without a use of the
    /// token, at most [`MOST_REPEATS`] times: the answer may have been lost.
    async fn join(&self, token: TokenId, certificate: &CertificateRecord) -> Result<Joined, Error>;

    /// Stores the certificate that a member got for the one with the serial number `old`, unless it was revoked.
    /// Whether it did.
    async fn renew(&self, old: &str, certificate: &CertificateRecord) -> Result<bool, Error>;

    /// One certificate.
    async fn certificate(&self, serial: &str) -> Result<Option<CertificateRecord>, Error>;

    /// A page of the certificates that have not expired.
    async fn list_certificates(&self, page: &NewestFirst) -> Result<Vec<CertificateRecord>, Error>;

    /// Revokes one certificate, also one that is not stored here: of those at most `most`. Whether it is revoked now.
    async fn revoke_serial(&self, serial: &str, now: Time, most: u32) -> Result<bool, Error>;

    /// Revokes all that a member has, its access tokens too. Of members there are at most `most`. What that was; none where
    /// it was one too many.
    async fn revoke_member(
        &self,
        role: Role,
        name: &str,
        now: Time,
        most: u32,
    ) -> Result<Option<MemberRevoked>, Error>;

    /// All who are revoked, but for certificates that have expired.
    async fn revoked(&self, now: Time) -> Result<Revoked, Error>;

    /// How many certificates are in use, by the number of their root: not expired, not revoked, not renewed since.
    async fn in_use(&self, now: Time) -> Result<BTreeMap<u32, u64>, Error>;

    /// Who has a certificate in use that a root before `root` signed: role and name, sorted, at most `limit`.
    async fn holders_before(&self, root: u32, now: Time, limit: u32) -> Result<Vec<(Role, String)>, Error>;

    /// Forgets the certificates that roots before `root` signed: nobody trusts those roots any more. But not that one was
    /// revoked: the file of a root that is missing at a start may be put back.
    async fn forget_before(&self, root: u32) -> Result<(), Error>;

    /// Removes what has expired.
    async fn sweep(&self, now: Time) -> Result<(), Error>;
}
