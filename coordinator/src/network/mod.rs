//! The coordinator's ports, its CA, and whom it trusts.
//!
//! What a caller may do is decided elsewhere.

pub mod activity;
pub mod authority;
pub(crate) mod evictions;
pub(crate) mod keeper;
pub mod listen;

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use ringtune_security::CredentialPaths;
use ringtune_shared::daemon::settings::Protection;
use ringtune_web::guard::Names;
use tracing::{info, warn};

use self::authority::{OwnAuthority, Pki, PkiError};
use crate::host_names;
use crate::settings::Settings;
use crate::state_folder::StateFolder;

/// Who signs and whose certificates are believed, where the ports speak TLS. `listening`: the addresses of the ports;
/// `has_signed`: the store has certificates of the cluster's own CA.
///
/// # Errors
/// See [`PkiError`].
pub async fn open(
    settings: &Settings,
    state: &StateFolder,
    listening: &[SocketAddr],
    has_signed: bool,
) -> Result<Option<Pki>, PkiError> {
    let security = &settings.security;
    let exposed = listening.iter().any(|address| !address.ip().is_loopback());
    if security.insecure && exposed {
        warn!(
            "--insecure: nothing is encrypted, nobody is asked who they are, and whoever reaches these ports may do \
             everything. Only for test networks"
        );
    }
    if security.protection(&[settings.grpc.listen, settings.http.listen]) == Protection::Plain {
        return Ok(None);
    }
    let life = Duration::from_secs(settings.authority.certificate_seconds);
    let pki = if security.brings_certificate() {
        let paths = CredentialPaths {
            chain: security.certificate.clone(),
            key: security.key.clone(),
            ca: security.ca.clone(),
        };
        tokio::task::spawn_blocking(move || Pki::elsewhere(paths, life, SystemTime::now())).await??
    } else if has_signed && !state.has_authority() {
        return Err(PkiError::Lost(state.path().to_owned()));
    } else {
        let host = host_names::of_this_host();
        let names = host_names::names(&settings.authority.names, listening, host.as_deref());
        let own = OwnAuthority { folder: state.authority(), admin: state.admin(), names };
        tokio::task::spawn_blocking(move || Pki::own(own, life, SystemTime::now())).await??
    };
    info!(cluster = %pki.cluster(), own_authority = pki.issues(), "the ports speak TLS");
    Ok(Some(pki))
}

/// By which names browsers reach this host: as for its own certificate, and those for which the certificate is that it shows. One
/// that comes from elsewhere has names that no setting has, and may be replaced.
pub(crate) fn names(settings: &Settings, pki: Option<&Pki>) -> Names {
    let host = host_names::of_this_host();
    let names = Names::new(host_names::names(&settings.authority.names, &[], host.as_deref()));
    match pki.map(|pki| pki.trust().clone()) {
        Some(trust) => {
            names.over_tls().and(move |name| trust.credentials().is_some_and(|own| own.is_for(name)))
        }
        None => names,
    }
}
