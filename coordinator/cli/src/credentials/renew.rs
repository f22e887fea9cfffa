//! Certificates as a coordinator gives them, and the next one before the old one ends.

use std::time::SystemTime;

use ringtune_proto::v1;
use ringtune_security::{Credentials, Csr, PrivateKey, Roots};

use super::{AccessError, Found};
use crate::client::Client;

/// Whether it is time for the next certificate, and not too late to ask with the old one.
pub fn is_due(found: &Found, now: SystemTime) -> bool {
    let credentials = found.trust.credentials().filter(|_| found.source.renewed_in().is_some());
    credentials.is_some_and(|credentials| credentials.renew_at() <= now && now < credentials.validity().until)
}

/// Gets the next certificate, keeps it where the old one was, and uses it from now on.
///
/// # Errors
/// The coordinator gives none, or it cannot be kept: the old one stays in use.
pub async fn renew(client: &Client, found: &Found) -> Result<Credentials, AccessError> {
    let (key, csr) = Csr::make().map_err(|error| AccessError::Given(error.to_string()))?;
    let certified = client.renew_certificate(csr.der()).await?;
    let credentials = made_of(key, &certified)?;
    let before = found.trust.credentials();
    let holder = |of: &Credentials| of.identity().ok().map(|holder| (holder.role, holder.name.clone()));
    if before.as_deref().and_then(holder) != holder(&credentials) {
        return Err(AccessError::Given("it is somebody else's".to_owned()));
    }
    if let Some(folder) = found.source.renewed_in() {
        let (folder, kept) = (folder.to_owned(), credentials.clone());
        let storing = tokio::task::spawn_blocking(move || {
            kept.store(&folder).map_err(|source| AccessError::Credentials { folder, source })
        });
        storing.await.map_err(|error| AccessError::Given(error.to_string()))??;
    }
    let unusable = |error: ringtune_security::TrustError| AccessError::Given(error.to_string());
    found.trust.set_roots(credentials.roots().clone()).map_err(unusable)?;
    found.trust.set_credentials(credentials.clone()).map_err(unusable)?;
    Ok(credentials)
}

/// A key, and what a coordinator gave for it.
///
/// # Errors
/// They do not fit together.
pub fn made_of(key: PrivateKey, certified: &v1::Certified) -> Result<Credentials, AccessError> {
    let roots =
        Roots::from_pem(&certified.roots_pem).map_err(|error| AccessError::Given(error.to_string()))?;
    Credentials::new(key, &certified.chain_pem, roots).map_err(|error| AccessError::Given(error.to_string()))
}
