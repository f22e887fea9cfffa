//! A worker's place in a secured cluster: how it gets in by a token, keeps its certificate alive, and follows what the
//! coordinator says about whom to trust.
//!
//! Invariant: a certificate is on the disk before it is used. A token is in neither the arguments nor the environment
//! of a running worker.

mod brought;
mod call;
mod enter;
mod error;
mod following;
mod renewal;
#[cfg(test)]
pub(crate) mod testing;
pub mod token;

use std::{path::PathBuf, sync::Arc, time::SystemTime};

use ringtune_security::{CredentialPaths, Trust};
use ringtune_shared::ids::WorkerId;
use tokio::sync::Notify;

pub(crate) use enter::worker_of;
pub use enter::{Entering, brought_worker, enter};
pub use error::{MembershipError, TokenTextError};
pub use following::{FollowError, Following};
pub(crate) use renewal::ADVICE;
pub use token::TokenText;

/// A worker that has a certificate.
#[derive(Clone, Debug)]
pub struct Membership {
    trust: Trust,
    worker: WorkerId,
    source: CertificateSource,
    /// When it was given the certificate; none: before this start.
    got_at: Option<SystemTime>,
    roots_changed: Arc<Notify>,
}

/// Source of the certificate.
#[derive(Clone, Debug)]
enum CertificateSource {
    /// The coordinator's own authority; it is kept in a folder.
    Joined { folder: PathBuf, url: String },
    /// From elsewhere: files that others replace.
    Brought(CredentialPaths),
}

impl Membership {
    /// This worker's credentials and trusted roots.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Follows the coordinator's changes of trust.
    pub fn following(&self) -> Following {
        Following {
            trust: self.trust.clone(),
            is_joined: matches!(self.source, CertificateSource::Joined { .. }),
            roots_changed: Arc::clone(&self.roots_changed),
        }
    }

    /// Renews the certificate in time, or follows the files that it comes from, and looks at them at once when `reread`
    /// asks for it. Never ends.
    pub async fn keep(self, reread: Arc<Notify>) {
        match self.source {
            CertificateSource::Joined { folder, url } => {
                let Self { trust, worker, roots_changed, got_at, .. } = self;
                let renewal = renewal::Renewal { trust, worker, folder, url, roots_changed };
                renewal::keep(renewal, got_at).await;
            }
            CertificateSource::Brought(paths) => brought::keep(paths, self.trust, self.worker, &reread).await,
        }
    }
}

/// A point in time as logs and texts have it.
pub(crate) fn text_of(at: SystemTime) -> String {
    prost_types::Timestamp::from(at).to_string()
}
