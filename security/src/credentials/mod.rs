//! A key, its certificate, and whom its holder trusts.

mod key;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;

pub use self::key::{Csr, PrivateKey};
use crate::certificate::{self, Facts, Validity};
use crate::files::{self, FileError};
use crate::identity::{Cluster, Identity, IdentityError};
use crate::names::Internal;
use crate::roots::{self, Roots, RootsError};

/// Key and chain: one file, so that they always belong together.
const IDENTITY: &str = "identity.pem";
/// The roots.
const TRUST: &str = "trust.pem";

/// Credentials that cannot be made, read or written.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file system's answer.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file that is not there.
    #[error("there is no file {}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// No key could be made.
    #[error("cannot make a key: {0}")]
    Make(String),
    /// The key cannot be read.
    #[error(
        "the private key cannot be used: {problem}. PEM with an unencrypted key is needed (PKCS #8, SEC 1 or PKCS #1)"
    )]
    Key {
        /// What is wrong with it.
        problem: String,
    },
    /// The chain cannot be read.
    #[error(
        "the certificate chain cannot be used: {problem}. PEM is needed, with the holder's own certificate first"
    )]
    Chain {
        /// What is wrong with it.
        problem: String,
    },
    /// The key is another certificate's.
    #[error("the private key is not that of the first certificate of the chain")]
    OtherKey,
    /// The roots cannot be used.
    #[error(transparent)]
    Roots(#[from] RootsError),
}

/// Where certificates from elsewhere are, all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialPaths {
    /// The holder's certificate and those between it and its root.
    pub chain: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The roots that the holder trusts.
    pub ca: PathBuf,
}

/// A key, its certificate chain, and the roots that its holder trusts.
#[derive(Debug, Clone)]
pub struct Credentials {
    key: PrivateKey,
    /// Never empty, the holder's own first.
    chain: Vec<CertificateDer<'static>>,
    roots: Roots,
    facts: Facts,
    pair: Arc<CertifiedKey>,
}

impl Credentials {
    /// From their parts.
    ///
    /// # Errors
    /// One of them cannot be used, or the key is not that of the chain's first certificate.
    pub fn new(key: PrivateKey, chain_pem: &str, roots: Roots) -> Result<Self, CredentialsError> {
        let wrong = |problem: String| CredentialsError::Chain { problem };
        let chain = roots::certificates(chain_pem).map_err(wrong)?;
        let leaf = chain.first().ok_or_else(|| wrong("there is no certificate in it".into()))?;
        let facts =
            certificate::facts(leaf).ok_or_else(|| wrong("its first certificate is damaged".into()))?;
        let pair = Arc::new(key.pair_with(chain.clone())?);
        Ok(Self { key, chain, roots, facts, pair })
    }

    /// Those in a folder of our own; None: there are none yet. Blocks.
    ///
    /// # Errors
    /// A file is damaged, open to everybody, or one of the two is missing.
    pub fn load(folder: &Path) -> Result<Option<Self>, CredentialsError> {
        let (identity, trust) = (folder.join(IDENTITY), folder.join(TRUST));
        let Some(text) = files::read(&identity)? else { return Ok(None) };
        files::check_private(&identity)?;
        let roots = files::read(&trust)?.ok_or(CredentialsError::Missing { path: trust })?;
        Self::new(PrivateKey::from_pem(&text)?, &text, Roots::from_pem(&roots)?).map(Some)
    }

    /// Keeps them in a folder that is made if need be; only its owner may read it. Blocks.
    ///
    /// # Errors
    /// The file system's. Key and chain are replaced together or not at all.
    pub fn store(&self, folder: &Path) -> Result<(), CredentialsError> {
        files::make_folder(folder)?;
        files::write(&folder.join(TRUST), self.roots.pem().as_bytes())?;
        let identity = format!("{}{}", self.key.pem(), self.chain_pem());
        files::write(&folder.join(IDENTITY), identity.as_bytes())?;
        Ok(key::forget(folder)?)
    }

    /// Certificates from elsewhere. Who else may read the files is their owner's affair. Blocks.
    ///
    /// # Errors
    /// A file is missing or cannot be used.
    pub fn read(paths: &CredentialPaths) -> Result<Self, CredentialsError> {
        let text = |path: &Path| {
            files::read(path)?.ok_or_else(|| CredentialsError::Missing { path: path.to_owned() })
        };
        let (chain, key) = (text(&paths.chain)?, text(&paths.key)?);
        Self::new(PrivateKey::from_pem(&key)?, &chain, Roots::from_pem(&text(&paths.ca)?)?)
    }

    /// Whom the certificate names.
    ///
    /// # Errors
    /// It names nobody: the coordinator's, or one from elsewhere without a role.
    pub fn identity(&self) -> Result<&Identity, &IdentityError> {
        self.facts.identity.as_ref()
    }

    /// The cluster of its holder, or else that of the CA. None: all of it is from elsewhere and names none.
    pub fn cluster(&self) -> Option<Cluster> {
        let named = self.facts.identity.as_ref().ok().map(|identity| identity.cluster);
        let internal =
            || self.facts.names.iter().find_map(|name| Internal::parse(name)).map(Internal::cluster);
        named.or_else(internal).or_else(|| self.roots.cluster())
    }

    /// Whether the certificate is for this host name or address, also by a wildcard.
    pub fn is_for(&self, host: &str) -> bool {
        let (Some(leaf), Ok(name)) = (self.chain.first(), ServerName::try_from(host)) else { return false };
        let parsed = ParsedCertificate::try_from(leaf);
        parsed.is_ok_and(|leaf| verify_server_name(&leaf, &name).is_ok())
    }

    /// The certificate's serial number, in lower-case hex.
    pub fn serial(&self) -> &str {
        &self.facts.serial
    }

    /// From when until when the certificate is valid.
    pub fn validity(&self) -> Validity {
        self.facts.validity
    }

    /// When to renew: after two thirds of the validity.
    pub fn renew_at(&self) -> SystemTime {
        self.facts.validity.renew_at()
    }

    /// The roots that the holder trusts.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// As these, with other roots.
    #[must_use]
    pub fn with_roots(self, roots: Roots) -> Self {
        Self { roots, ..self }
    }

    /// The chain as PEM, the holder's own first.
    pub fn chain_pem(&self) -> String {
        roots::pem_of(&self.chain)
    }

    /// As rustls wants it.
    pub(crate) fn pair(&self) -> Arc<CertifiedKey> {
        self.pair.clone()
    }
}

#[cfg(test)]
mod tests;
