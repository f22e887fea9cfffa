//! How a client checks a server: by its roots or one root's hash, and by who the server is in the cluster.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};
use uuid::Uuid;

use crate::certificate::{self, Facts};
use crate::identity::{Cluster, Identity, Role};
use crate::names::{self, Internal};
use crate::roots;
use crate::trust::Revoked;

/// By what a server's certificate is verified.
#[derive(Debug)]
pub(crate) enum Known {
    /// By roots, and while it is not revoked.
    Roots(Arc<RootCertStore>, Arc<Revoked>),
    /// By a root that the server itself sends, which has this hash: that of a token.
    Hash([u8; 32]),
}

/// Who the server has to be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Expected {
    /// The coordinator, by its internal name or, with a certificate from elsewhere, by the URL's host.
    Coordinator(Cluster),
    /// One worker, by its internal name or its identity.
    Worker(Uuid, Cluster),
    /// Some worker, by the same.
    AnyWorker(Cluster),
}

impl Expected {
    /// The internal name, or what there is to say of whoever would do.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Coordinator(cluster) => names::coordinator(cluster),
            Self::Worker(id, cluster) => names::worker(id, cluster),
            Self::AnyWorker(cluster) => format!("a worker of the cluster {cluster}"),
        }
    }

    fn cluster(self) -> Cluster {
        match self {
            Self::Coordinator(cluster) | Self::Worker(_, cluster) | Self::AnyWorker(cluster) => cluster,
        }
    }
}

/// The server sent no root with the token's hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("none of the certificates that the server sent is the token's CA")]
pub(crate) struct OtherAuthority;

/// The certificate is good, but another server's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the certificate is that of another server: {names:?}")]
pub(crate) struct WrongServer {
    /// Its cluster, where that is another one.
    pub(crate) cluster: Option<Cluster>,
    /// For what it is.
    pub(crate) names: Vec<String>,
}

/// rustls's verifier, with our rules about names.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    known: Known,
    expected: Expected,
    algorithms: WebPkiSupportedAlgorithms,
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}

impl ServerVerifier {
    pub(super) fn new(known: Known, expected: Expected, algorithms: WebPkiSupportedAlgorithms) -> Self {
        Self { known, expected, algorithms }
    }

    fn check_chain(
        &self,
        certificate: &ParsedCertificate<'_>,
        sent: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let by_hash;
        let store = match &self.known {
            Known::Roots(store, _) => store.as_ref(),
            Known::Hash(hash) => {
                let mut sent = sent.iter().map(|sent| sent.clone().into_owned());
                let root =
                    sent.find(|sent| roots::hash(sent) == *hash).ok_or_else(|| other(OtherAuthority))?;
                let mut store = RootCertStore::empty();
                store.add(root)?;
                by_hash = store;
                &by_hash
            }
        };
        verify_server_cert_signed_by_trust_anchor(certificate, store, sent, now, self.algorithms.all)
    }

    fn check_name(
        &self,
        certificate: &ParsedCertificate<'_>,
        facts: &Facts,
        host: &ServerName<'_>,
    ) -> Result<(), Error> {
        let is_named = |name: String| {
            ServerName::try_from(name).is_ok_and(|name| verify_server_name(certificate, &name).is_ok())
        };
        let worker = facts.identity.as_ref().ok().filter(|identity| identity.role == Role::Worker);
        let is_it = match self.expected {
            Expected::Coordinator(_) => {
                verify_server_name(certificate, host).is_ok() || is_named(self.expected.name())
            }
            Expected::Worker(id, cluster) => {
                let is_known = |it: &Identity| (it.cluster, it.worker()) == (cluster, Some(id));
                worker.is_some_and(is_known) || is_named(self.expected.name())
            }
            Expected::AnyWorker(ours) => {
                let is_ours = |name: &String| matches!(Internal::parse(name), Some(Internal::Worker(_, theirs)) if theirs == ours);
                worker.is_some_and(|it| it.cluster == ours && it.worker().is_some())
                    || facts.names.iter().any(is_ours)
            }
        };
        if is_it {
            return Ok(());
        }
        let internal = facts.names.iter().find_map(|name| Internal::parse(name)).map(Internal::cluster);
        let named = facts.identity.as_ref().ok().map(|identity| identity.cluster);
        let cluster = named.or(internal).filter(|theirs| *theirs != self.expected.cluster());
        Err(other(WrongServer { cluster, names: facts.names.clone() }))
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        self.check_chain(&certificate, intermediates, now)?;
        let facts = certificate::facts(end_entity);
        let facts = facts.ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
        self.check_name(&certificate, &facts, server_name)?;
        if let Known::Roots(_, revoked) = &self.known {
            let named = facts.identity.as_ref().is_ok_and(|identity| revoked.has(identity));
            if named || revoked.has_serial(&facts.serial) {
                return Err(Error::InvalidCertificate(CertificateError::Revoked));
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
