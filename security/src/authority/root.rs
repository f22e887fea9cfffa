//! One root: its key, its certificate, and the file that holds both.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use time::OffsetDateTime;

use super::AuthorityError;
use crate::certificate::BACKDATED;
use crate::files::{self, FileError};
use crate::identity::Cluster;
use crate::names::{self, Internal};
use crate::{certificate, random, roots, times};

/// How long a root is valid: longer than a cluster stays as it is, and it can be rotated at any time.
const LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A root.
#[derive(Debug)]
pub(super) struct Root {
    /// From 1.
    pub(super) number: u32,
    pub(super) cluster: Cluster,
    /// rcgen's Debug does not show it.
    pub(super) key: KeyPair,
    /// Signed by its own key.
    pub(super) certificate: CertificateDer<'static>,
    /// The same key's certificate by the root before it.
    pub(super) cross: Option<CertificateDer<'static>>,
    /// The last second of the certificate.
    pub(super) until: SystemTime,
}

/// The file of the root with that number.
pub(super) fn path(folder: &Path, number: u32) -> PathBuf {
    folder.join(format!("root-{number:04}.pem"))
}

/// The number of a root's file; None: a file of another sort.
fn number_of(name: &str) -> Option<u32> {
    name.strip_prefix("root-")?.strip_suffix(".pem")?.parse().ok().filter(|number| *number > 0)
}

/// When what is made now begins to be valid.
pub(super) fn begin(now: SystemTime) -> SystemTime {
    times::whole_second(now.checked_sub(BACKDATED).unwrap_or(UNIX_EPOCH))
}

/// A serial number of 16 random bytes, of which the first is never 0 and makes the number positive.
pub(super) fn serial() -> Result<SerialNumber, String> {
    let mut bytes: [u8; 16] = random::bytes().map_err(|error| error.to_string())?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

impl Root {
    /// A new one, with a cross certificate by `older`.
    pub(super) fn make(
        cluster: Cluster,
        number: u32,
        older: Option<&Self>,
        now: SystemTime,
    ) -> Result<Self, String> {
        let plain = |error: rcgen::Error| error.to_string();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(plain)?;
        let until = times::whole_second(now + LIFE);
        let params = |until: SystemTime| {
            let mut subject = DistinguishedName::new();
            subject.push(DnType::OrganizationName, "Ringtune");
            subject.push(DnType::CommonName, format!("Ringtune CA {number}"));
            // Roots of different clusters have different subjects, so that nobody tries the wrong one.
            subject.push(DnType::OrganizationalUnitName, cluster.to_string());
            let mut params = CertificateParams::default();
            params.distinguished_name = subject;
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
            params.subject_alt_names =
                vec![SanType::DnsName(names::authority(cluster).as_str().try_into().map_err(plain)?)];
            params.serial_number = Some(serial()?);
            params.not_before = OffsetDateTime::from(begin(now));
            params.not_after = OffsetDateTime::from(until);
            Ok::<_, String>(params)
        };
        let certificate = params(until)?.self_signed(&key).map_err(plain)?.der().clone();
        let cross = match older {
            None => None,
            Some(older) => {
                let mut params = params(older.until.min(until))?;
                params.use_authority_key_identifier_extension = true;
                Some(params.signed_by(&key, &older.issuer()?).map_err(plain)?.der().clone())
            }
        };
        Ok(Self { number, cluster, key, certificate, cross, until })
    }

    /// As rcgen wants whoever signs.
    pub(super) fn issuer(&self) -> Result<Issuer<'_, &KeyPair>, String> {
        Issuer::from_ca_cert_der(&self.certificate, &self.key).map_err(|error| error.to_string())
    }

    /// Writes its file. Blocks.
    pub(super) fn write(&self, folder: &Path) -> Result<(), FileError> {
        let key = roots::block("PRIVATE KEY", self.key.serialized_der());
        let certificates = std::iter::once(&self.certificate).chain(&self.cross).cloned().collect::<Vec<_>>();
        files::write(&path(folder, self.number), format!("{key}{}", roots::pem_of(&certificates)).as_bytes())
    }

    fn read(number: u32, text: &str) -> Result<Self, String> {
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| "it has no private key")?;
        let key = KeyPair::try_from(&key).map_err(|_| "its private key cannot be read")?;
        let mut certificates = roots::certificates(text)?.into_iter();
        let certificate = certificates.next().ok_or("it has no certificate")?;
        let facts = certificate::facts(&certificate).ok_or("its certificate cannot be read")?;
        let cluster = facts.names.iter().find_map(|name| match Internal::parse(name) {
            Some(Internal::Authority(cluster)) => Some(cluster),
            _ => None,
        });
        let root = Self {
            number,
            cluster: cluster.ok_or("its certificate names no cluster")?,
            key,
            certificate,
            cross: certificates.next(),
            until: facts.validity.until,
        };
        let signing = PrivateKeyDer::try_from(root.key.serialize_der()).map_err(str::to_owned)?;
        let provider = rustls::crypto::ring::default_provider();
        let pair = rustls::sign::CertifiedKey::from_der(vec![root.certificate.clone()], signing, &provider);
        pair.map_err(|_| "its key and its certificate do not belong together")?;
        Ok(root)
    }
}

/// The roots of a folder, the newest last. Blocks.
pub(super) fn read_all(folder: &Path) -> Result<Vec<Root>, AuthorityError> {
    let failed = |cause| FileError::Io { action: "read the folder", path: folder.to_owned(), cause };
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        numbers.extend(entry.map_err(failed)?.file_name().to_str().and_then(number_of));
    }
    numbers.sort_unstable();
    numbers.dedup();
    let read = |number| {
        let path = path(folder, number);
        files::check_private(&path)?;
        let text = files::read(&path)?.unwrap_or_default();
        Root::read(number, &text).map_err(|problem| AuthorityError::Damaged { path, problem })
    };
    numbers.into_iter().map(read).collect()
}
