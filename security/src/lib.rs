//! Who is who on the network, and every connection's protection.
//!
//! The coordinator has an [`Authority`](authority::Authority), a small CA of its own. Whoever has a [`JoinToken`] checks
//! the CA by the hash in it, and gets a certificate: [`Credentials`]. A [`Trust`] holds what a process believes just now
//! (its credentials, the roots, who is revoked); every [`Listener`] and [`Connector`] follows it without a restart.
//! TLS is rustls with ring, version 1.3 alone. A call learns from [`Peer`] who makes it,
//! and [`CallRates`] bound how many one caller makes. What a caller may do is for
//! others to decide.
//!
//! # Invariants
//!
//! - This crate reaches no other crate of the workspace, and of tonic names one trait. Nobody else names rustls (except
//!   `worker/sources`, for hubs, and tests), rcgen or x509-parser.
//! - Nothing shows a key or a secret but the functions that are there for it, and no error quotes a token.

pub mod accept;
pub mod authority;
mod certificate;
pub mod connect;
pub mod credentials;
mod files;
mod handed;
mod host;
pub mod identity;
pub mod names;
pub mod pages;
pub mod peer;
mod plaintext;
mod random;
mod rate;
pub mod roots;
mod socket;
#[cfg(test)]
mod testing;
mod times;
mod tls;
pub mod token;
pub mod trust;

pub use accept::{
    Clients, Connection, Connections, Invitation, Limits, Listener, ListenerError, LocalDoor, NotInvited,
    Protection, Protocols, Refusal, Refusals,
};
pub use authority::{Authority, AuthorityError, Holder, IssueError, Issued, Leaf};
pub use certificate::Validity;
pub use connect::{ConnectError, Connector, Outgoing, PageStream, Server};
pub use credentials::{CredentialPaths, Credentials, CredentialsError, Csr, PrivateKey};
pub use files::FileError;
pub use handed::Handed;
pub use host::host_of;
pub use identity::{Cluster, Identity, IdentityError, Role};
pub use pages::{Closing, PageLimits, serve_pages};
pub use peer::{Activity, Call, Caller, Peer, Refused};
pub use random::Unpredictable;
pub use rate::{CallRates, CountedAs, TooManyCalls};
pub use roots::{Roots, RootsError};
pub use tls::{TlsError, use_ring};
pub use token::{AccessToken, JoinToken, Secret, SecretHash, TokenError, TokenId, TokenIdError};
pub use trust::{Revoked, Trust, TrustError};
