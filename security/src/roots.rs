//! The roots that somebody trusts.

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};

use crate::certificate::{self, Validity};
use crate::identity::Cluster;
use crate::names::Internal;

/// The most roots that are taken: a cluster's own CA has two while it rotates.
const MOST_ROOTS: usize = 100;

/// Roots that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RootsError {
    /// There is none.
    #[error("there is no root certificate: PEM with at least one CERTIFICATE is needed")]
    None,
    /// There are too many.
    #[error(
        "there are {given} root certificates: at most 100 are taken. Name the cluster's own CA, not all of a system"
    )]
    TooMany {
        /// How many there are.
        given: usize,
    },
    /// The text is not PEM.
    #[error("the root certificates are not PEM: {0}")]
    Pem(String),
    /// One of them is no certificate that can sign others.
    #[error("root certificate {number} cannot be used: {problem}")]
    Certificate {
        /// Which, from 1.
        number: usize,
        /// What is wrong with it.
        problem: String,
    },
}

/// One or more root certificates, the newest last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roots {
    ders: Vec<CertificateDer<'static>>,
}

impl Roots {
    /// From certificates, the newest last.
    ///
    /// # Errors
    /// There is none, or one of them is none.
    pub fn new(ders: Vec<CertificateDer<'static>>) -> Result<Self, RootsError> {
        match ders.len() {
            0 => return Err(RootsError::None),
            1..=MOST_ROOTS => {}
            given => return Err(RootsError::TooMany { given }),
        }
        let mut store = RootCertStore::empty();
        for (index, der) in ders.iter().enumerate() {
            let added = store.add(der.clone());
            added
                .map_err(|error| RootsError::Certificate { number: index + 1, problem: error.to_string() })?;
        }
        Ok(Self { ders })
    }

    /// From PEM; what is no certificate in it is skipped.
    ///
    /// # Errors
    /// As [`Roots::new`], or it is not PEM.
    pub fn from_pem(text: &str) -> Result<Self, RootsError> {
        Self::new(certificates(text).map_err(RootsError::Pem)?)
    }

    /// As PEM.
    pub fn pem(&self) -> String {
        pem_of(&self.ders)
    }

    /// As DER, the newest last.
    pub fn ders(&self) -> &[CertificateDer<'static>] {
        &self.ders
    }

    /// The SHA-256 of each.
    pub fn hashes(&self) -> Vec<[u8; 32]> {
        self.ders.iter().map(hash).collect()
    }

    /// From when until when each is valid; None: it cannot be read.
    pub fn validities(&self) -> Vec<Option<Validity>> {
        self.ders.iter().map(|der| certificate::facts(der).map(|facts| facts.validity)).collect()
    }

    /// The cluster whose CA the newest belongs to. None: a CA from elsewhere.
    pub fn cluster(&self) -> Option<Cluster> {
        let names = certificate::facts(self.ders.last()?)?.names;
        names.iter().find_map(|name| match Internal::parse(name) {
            Some(Internal::Authority(cluster)) => Some(cluster),
            _ => None,
        })
    }

    /// As rustls wants them.
    pub(crate) fn store(&self) -> RootCertStore {
        let mut store = RootCertStore::empty();
        // All of them were added once before.
        store.add_parsable_certificates(self.ders.iter().cloned());
        store
    }
}

/// The SHA-256 of a certificate, by which a token names a root.
pub(crate) fn hash(certificate: &CertificateDer<'static>) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

/// The certificates in a PEM text.
pub(crate) fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

/// Certificates as PEM.
pub(crate) fn pem_of(certificates: &[CertificateDer<'static>]) -> String {
    certificates.iter().map(|der| block("CERTIFICATE", der)).collect()
}

/// One block of PEM, with the line ends that everybody reads.
pub(crate) fn block(tag: &str, der: &[u8]) -> String {
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(tag, der), lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn roots_are_written_and_read_back() {
        let (one, two) = (testing::authority(), testing::authority());
        let both = Roots::new([one.roots().ders(), two.roots().ders()].concat()).unwrap();
        let read = Roots::from_pem(&format!("a note\n{}", both.pem())).unwrap();
        assert_eq!(read, both);
        assert_eq!(read.cluster(), Some(two.cluster()));
        assert_eq!(read.hashes(), [one.hash(), two.hash()]);
        assert!(read.validities().iter().all(|valid| valid.is_some_and(|valid| valid.from < valid.until)));
        assert_eq!(read.store().len(), 2);
    }

    #[test]
    fn what_is_no_root_is_refused() {
        assert_eq!(Roots::from_pem(""), Err(RootsError::None));
        assert_eq!(Roots::from_pem("hello"), Err(RootsError::None));
        let cut = testing::authority().roots().pem().replace("-----END CERTIFICATE-----", "");
        assert!(matches!(Roots::from_pem(&cut), Err(RootsError::Pem(_))));
        let wrong = block("CERTIFICATE", b"no certificate");
        let roots = format!("{}{wrong}", testing::authority().roots().pem());
        assert!(matches!(Roots::from_pem(&roots), Err(RootsError::Certificate { number: 2, .. })));
        let many = vec![testing::authority().roots().ders()[0].clone(); 101];
        assert_eq!(Roots::new(many), Err(RootsError::TooMany { given: 101 }));
    }
}
