//! Tokens: one line of text that lets somebody join, or call.
//!
//! A [`JoinToken`] is exchanged once for a certificate; it holds the hash of the CA, so that nobody has to trust a
//! connection before there is trust. An [`AccessToken`] goes with every call of somebody without a certificate. The
//! other side stores the hash of a secret and never the secret.

mod line;

use std::fmt::{self, Debug, Display};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use crate::identity::{Cluster, Role};
use crate::random::{self, Unpredictable};

/// What join tokens begin with, and the digit of their version.
const JOIN: &str = "rtj";
/// What access tokens begin with, and the digit of their version.
const ACCESS: &str = "rta";

/// Role, the CA's hash, id, secret, cluster.
const JOIN_BYTES: usize = 1 + 32 + 8 + 32 + 16;
/// Id, secret.
const ACCESS_BYTES: usize = 8 + 32;

/// A text that is no token. Never quotes the text: it may be most of a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is nothing.
    #[error("the token is empty: {} token begins with {wanted_prefix}1.", with_article(wanted))]
    Empty {
        /// "join" or "access".
        wanted: &'static str,
        /// What such a token begins with.
        wanted_prefix: &'static str,
    },
    /// A token of the other sort.
    #[error(
        "this is a token of another kind: {} token is needed, which begins with {wanted_prefix}1.",
        with_article(wanted)
    )]
    OtherKind {
        /// "join" or "access".
        wanted: &'static str,
        /// What such a token begins with.
        wanted_prefix: &'static str,
    },
    /// No token at all.
    #[error("this is not a token: {} token begins with {wanted_prefix}1.", with_article(wanted))]
    NoToken {
        /// "join" or "access".
        wanted: &'static str,
        /// What such a token begins with.
        wanted_prefix: &'static str,
    },
    /// A token of a later release.
    #[error("the token has version {given}, and this program knows version 1: upgrade this program")]
    Version {
        /// The version that the token names.
        given: u32,
    },
    /// A token that lost its end, or its beginning.
    #[error(
        "the token is cut: it has {given} characters where {} token has {length}. Copy the whole line",
        with_article(wanted)
    )]
    Length {
        /// "join" or "access".
        wanted: &'static str,
        /// How many characters were given, prefix included.
        given: usize,
        /// How many it has when it is whole.
        length: usize,
    },
    /// A token with a wrong letter.
    #[error("the token is mistyped: its checksum does not fit. Copy the whole line")]
    Mistyped,
    /// A whole token that names something that this release does not know.
    #[error("the token is for a role that this program does not know: upgrade this program")]
    UnknownRole,
}

/// "a join", "an access".
fn with_article(word: &str) -> String {
    let article = if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {word}")
}

/// By what a token is found again: no secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId([u8; 8]);

impl TokenId {
    /// As calls carry it.
    pub fn bytes(self) -> [u8; 8] {
        self.0
    }
}

impl From<[u8; 8]> for TokenId {
    fn from(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }
}

impl Display for TokenId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

/// A text that is no token's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a token's id is 16 hexadecimal digits")]
pub struct TokenIdError;

impl FromStr for TokenId {
    type Err = TokenIdError;

    fn from_str(text: &str) -> Result<Self, TokenIdError> {
        let mut bytes = [0; 8];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| TokenIdError)?;
        Ok(Self(bytes))
    }
}

/// What makes a token worth something: 32 random bytes. It is shown by nothing but [`Secret::reveal`].
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// One from a call.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// For a call to the coordinator, and nothing else.
    pub fn reveal(&self) -> &[u8; 32] {
        &self.0
    }

    /// What is stored in its place: its SHA-256. With 256 random bits there is nothing that a slow hash would add.
    pub fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.0).into())
    }

    /// Whether it is the secret of that hash, in a time that depends on neither.
    pub fn matches(&self, hash: &SecretHash) -> bool {
        self.hash().0.ct_eq(&hash.0).into()
    }
}

impl Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

/// The SHA-256 of a [`Secret`].
#[derive(Debug, Clone, Copy)]
pub struct SecretHash(pub [u8; 32]);

impl From<[u8; 32]> for SecretHash {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Lets somebody join a cluster in one role. Its line begins with `rtj1.`
#[derive(Debug, Clone)]
pub struct JoinToken {
    /// As what.
    pub role: Role,
    /// The SHA-256 of the newest root's DER, by which whoever joins knows the right coordinator.
    pub authority: [u8; 32],
    /// Which cluster.
    pub cluster: Cluster,
    /// By what the coordinator finds it.
    pub id: TokenId,
    /// What the coordinator has the hash of.
    pub secret: Secret,
}

impl JoinToken {
    /// A new one.
    ///
    /// # Errors
    /// There are no random bytes.
    pub fn new(role: Role, authority: [u8; 32], cluster: Cluster) -> Result<Self, Unpredictable> {
        let (id, secret) = (TokenId(random::bytes()?), Secret(random::bytes()?));
        Ok(Self { role, authority, cluster, id, secret })
    }

    /// The line that is given to whoever is to join. It holds the secret.
    pub fn reveal(&self) -> String {
        let mut bytes = Vec::with_capacity(JOIN_BYTES);
        bytes.push(role_byte(self.role));
        bytes.extend(self.authority);
        bytes.extend(self.id.0);
        bytes.extend(self.secret.0);
        bytes.extend(self.cluster.uuid().as_bytes());
        line::write(JOIN, &bytes)
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let bytes =
            line::read::<JOIN_BYTES>(&line::Kind { wanted: "join", prefix: JOIN, other: ACCESS }, text)?;
        let mut rest = bytes.as_slice();
        let [role] = take(&mut rest)?;
        let (authority, id, secret) = (take(&mut rest)?, take(&mut rest)?, take(&mut rest)?);
        let cluster = Cluster::from(Uuid::from_bytes(take(&mut rest)?));
        let role = Role::ALL.into_iter().find(|known| role_byte(*known) == role);
        let role = role.ok_or(TokenError::UnknownRole)?;
        Ok(Self { role, authority, cluster, id: TokenId(id), secret: Secret(secret) })
    }
}

/// Lets somebody call who has no certificate. Its line begins with `rta1.`
#[derive(Debug, Clone)]
pub struct AccessToken {
    /// By what the coordinator finds it.
    pub id: TokenId,
    /// What the coordinator has the hash of.
    pub secret: Secret,
}

impl AccessToken {
    /// A new one.
    ///
    /// # Errors
    /// There are no random bytes.
    pub fn new() -> Result<Self, Unpredictable> {
        Ok(Self { id: TokenId(random::bytes()?), secret: Secret(random::bytes()?) })
    }

    /// The line that goes with calls: `authorization: Bearer LINE`. It holds the secret.
    pub fn reveal(&self) -> String {
        line::write(ACCESS, &[&self.id.0[..], &self.secret.0[..]].concat())
    }
}

impl FromStr for AccessToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let kind = line::Kind { wanted: "access", prefix: ACCESS, other: JOIN };
        let bytes = line::read::<ACCESS_BYTES>(&kind, text)?;
        let mut rest = bytes.as_slice();
        Ok(Self { id: TokenId(take(&mut rest)?), secret: Secret(take(&mut rest)?) })
    }
}

/// The next bytes of those that were read; their number was checked.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], TokenError> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(TokenError::Mistyped)?;
    *rest = left;
    Ok(*taken)
}

/// As a token holds it: these numbers never change.
fn role_byte(role: Role) -> u8 {
    match role {
        Role::Worker => 1,
        Role::Submitter => 2,
        Role::Observer => 3,
        Role::Admin => 4,
    }
}

#[cfg(test)]
mod tests;
