//! Certificates as a coordinator gives them, and the next one before the old one ends.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use ringtune_proto::v1;
use ringtune_security::{Credentials, Csr, PrivateKey, Role, Roots};

use super::{AccessError, CredentialSource, Found};
use crate::client::Client;

/// Between two looks at a certificate, at least and at most.
const LOOKS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));
/// After one that failed.
const AGAIN: Duration = Duration::from_secs(5);

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

/// Keeps the certificate fresh for as long as a command runs: one that follows a job may outlive several. Never ends.
pub async fn keep(client: Client, found: Found) {
    loop {
        let Some(credentials) = found.trust.credentials() else { return std::future::pending().await };
        let left = credentials.renew_at().duration_since(SystemTime::now()).unwrap_or_default();
        tokio::time::sleep(left.clamp(LOOKS.0, LOOKS.1)).await;
        if SystemTime::now() < credentials.renew_at() || read_again(&found, &credentials).await {
            continue;
        }
        // Where it is not renewed and ends, the command itself says so.
        if is_due(&found, SystemTime::now()) && Box::pin(renew(&client, &found)).await.is_err() {
            tokio::time::sleep(AGAIN).await;
        }
    }
}

fn holder(of: &Credentials) -> Option<(Role, String)> {
    of.identity().ok().map(|holder| (holder.role, holder.name.clone()))
}

/// Reloads a certificate that the coordinator or another command has replaced. Whether there was one.
async fn read_again(found: &Found, known: &Credentials) -> bool {
    let (CredentialSource::Admin(folder)
    | CredentialSource::Folder(folder)
    | CredentialSource::Login(folder)) = &found.source
    else {
        return false;
    };
    let folder: PathBuf = folder.clone();
    let read = tokio::task::spawn_blocking(move || Credentials::load(&folder)).await;
    let Ok(Ok(Some(read))) = read else { return false };
    let is_newer = read.serial() != known.serial() && read.validity().until > known.validity().until;
    let (roots, is_mine) = (read.roots().clone(), holder(&read) == holder(known));
    is_newer && is_mine && found.trust.set_roots(roots).is_ok() && found.trust.set_credentials(read).is_ok()
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
