//! rustls, set up the one way that is used here: version 1.3, ring, and no session that is taken up again, because then
//! nobody would look at the other side's certificate.

mod verify;

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use self::verify::ServerVerifier;
pub(crate) use self::verify::{Expected, Known, OtherAuthority, WrongServer};
use crate::credentials::Credentials;
use crate::roots::Roots;
use crate::trust::State;

/// What is spoken within TLS.
pub(crate) const HTTP2: &[u8] = b"h2";
/// The older one.
pub(crate) const HTTP1: &[u8] = b"http/1.1";

/// rustls could not be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// There is nothing to serve with.
    #[error("there is no certificate to serve with")]
    NoCredentials,
    /// rustls refuses.
    #[error("TLS cannot be set up: {0}")]
    Refused(String),
}

/// Has other libraries of this process make their TLS with rustls and ring too.
pub fn use_ring() {
    // Somebody else's choice, made before, is as good.
    let _ = ring::default_provider().install_default();
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn refused(error: impl std::error::Error) -> TlsError {
    TlsError::Refused(error.to_string())
}

/// For a listener. Certificates of clients are checked where they come; `required`: one must.
pub(crate) fn server(state: &State, required: bool, protocols: &[&[u8]]) -> Result<ServerConfig, TlsError> {
    let credentials = state.credentials.as_ref().ok_or(TlsError::NoCredentials)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(state.store.clone(), provider());
    let verifier = if required { verifier } else { verifier.allow_unauthenticated() };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_client_cert_verifier(verifier.build().map_err(refused)?)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(credentials.pair())));
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// For a connector, which speaks HTTP/2.
pub(crate) fn client(
    known: Known,
    expected: Expected,
    credentials: Option<&Credentials>,
) -> Result<ClientConfig, TlsError> {
    let verifier = ServerVerifier::new(known, expected, provider().signature_verification_algorithms);
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match credentials {
        Some(credentials) => {
            config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(credentials.pair())))
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.resumption = Resumption::disabled();
    // The name is the only word that a handshake says in the clear: it would tell which worker is called. No server
    // here has more than one certificate to choose from.
    config.enable_sni = false;
    Ok(config)
}

/// For a connector to a server that is none of the cluster's, over HTTP/2.
pub(crate) fn outside(roots: &Roots) -> Result<ClientConfig, TlsError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(refused)?
        .with_root_certificates(roots.store())
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}
