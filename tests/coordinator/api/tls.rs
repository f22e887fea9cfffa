//! TLS as a browser and other programs speak it, which are none of the cluster's.

use std::sync::Arc;

use ringtune_security::Roots;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio_rustls::{TlsConnector, rustls};

/// Connects as somebody who trusts these roots. `identity`: key and certificates, PEM; empty: without.
pub(crate) fn connector(roots: &Roots, identity: &str) -> TlsConnector {
    let mut store = rustls::RootCertStore::empty();
    roots.ders().iter().for_each(|root| store.add(root.clone()).unwrap());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store);
    let chain = CertificateDer::pem_slice_iter(identity.as_bytes()).collect::<Result<Vec<_>, _>>().unwrap();
    let config = match PrivateKeyDer::from_pem_slice(identity.as_bytes()) {
        Ok(key) => config.with_client_auth_cert(chain, key).unwrap(),
        Err(_) => config.with_no_client_auth(),
    };
    TlsConnector::from(Arc::new(config))
}
