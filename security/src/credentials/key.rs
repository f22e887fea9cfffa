//! Private keys, and requests for certificates of them.

use std::fmt::{self, Debug};
use std::path::Path;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use super::CredentialsError;
use crate::files::{self, FileError};
use crate::roots;

/// File name of a key whose certificate has not come yet.
const JOINING: &str = "joining.pem";

fn failed(error: rcgen::Error) -> CredentialsError {
    CredentialsError::Make(error.to_string())
}

/// Removes the key that was kept for further tries. Blocks.
pub(super) fn forget(folder: &Path) -> Result<(), FileError> {
    let path = folder.join(JOINING);
    if path.exists() { files::remove(&path) } else { Ok(()) }
}

/// A private key. Nothing shows it but [`PrivateKey::pem`].
pub struct PrivateKey(PrivateKeyDer<'static>);

impl PrivateKey {
    /// From PEM: the first key in it.
    ///
    /// # Errors
    /// There is none, or it is encrypted.
    pub fn from_pem(text: &str) -> Result<Self, CredentialsError> {
        let wrong = |problem: &str| CredentialsError::Key { problem: problem.to_owned() };
        if text.contains("BEGIN ENCRYPTED PRIVATE KEY") {
            return Err(wrong("it is encrypted"));
        }
        PrivateKeyDer::from_pem_slice(text.as_bytes())
            .map(Self)
            .map_err(|_| wrong("there is none in the text"))
    }

    /// As PEM, for a file that nobody else may read.
    pub fn pem(&self) -> String {
        let tag = match &self.0 {
            PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
            PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        roots::block(tag, self.0.secret_der())
    }

    /// With the chain of its certificate.
    pub(super) fn pair_with(
        &self,
        chain: Vec<CertificateDer<'static>>,
    ) -> Result<CertifiedKey, CredentialsError> {
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(chain, self.0.clone_key(), &provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => CredentialsError::OtherKey,
            other => CredentialsError::Key { problem: other.to_string() },
        })
    }
}

impl Clone for PrivateKey {
    fn clone(&self) -> Self {
        Self(self.0.clone_key())
    }
}

impl Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PrivateKey(…)")
    }
}

/// A request for a certificate: the public key, signed with the private one. It asks for nothing else.
#[derive(Debug, Clone)]
pub struct Csr(CertificateSigningRequestDer<'static>);

impl Csr {
    /// A new key and the request for its certificate.
    ///
    /// # Errors
    /// There are no random bytes.
    pub fn make() -> Result<(PrivateKey, Self), CredentialsError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let private = PrivateKey(PrivatePkcs8KeyDer::from(key.serialize_der()).into());
        Ok((private, Self::of(&key)?))
    }

    /// As [`Self::make`], but reuses the key of the last try if its certificate never came. The key is kept in the folder for
    /// the credentials until they are there; the coordinator answers a repeated request with the same key again. Blocks.
    ///
    /// # Errors
    /// There are no random bytes, or the key cannot be kept.
    pub fn kept(folder: &Path) -> Result<(PrivateKey, Self), CredentialsError> {
        files::make_folder(folder)?;
        let path = folder.join(JOINING);
        // One that is damaged is of no use to anybody.
        if let Some(private) = files::read(&path)?.and_then(|text| PrivateKey::from_pem(&text).ok())
            && let Ok(key) = KeyPair::from_der_and_sign_algo(&private.0, &PKCS_ECDSA_P256_SHA256)
        {
            files::check_private(&path)?;
            return Ok((private, Self::of(&key)?));
        }
        let (private, csr) = Self::make()?;
        files::write(&path, private.pem().as_bytes())?;
        Ok((private, csr))
    }

    fn of(key: &KeyPair) -> Result<Self, CredentialsError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "Ringtune");
        Ok(Self(params.serialize_request(key).map_err(failed)?.der().clone()))
    }

    /// What is sent.
    pub fn der(&self) -> &[u8] {
        &self.0
    }
}
