//! What is asked of the CA, and what it signs.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SignatureAlgorithm,
};
use rustls::pki_types::{CertificateDer, DnsName};
use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer as _, X509CertificationRequest};

use super::root::{self, Root};
use crate::certificate::Validity;
use crate::identity::{self, Cluster, Identity, IdentityError, Role};
use crate::names::{self, Internal};
use crate::{roots, times};

/// The most bytes of a CSR: one for a P-256 key has 300.
const LONGEST_CSR: usize = 8 << 10;
/// The most names that settings may add to the coordinator's certificate: it goes over the line in every handshake.
const MOST_NAMES: usize = 64;
/// By what the coordinator is reached on its own machine.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// A certificate that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// What was sent is no CSR.
    #[error(
        "the certificate request cannot be read: a PKCS #10 request in DER with an ECDSA P-256 key is needed"
    )]
    Unreadable,
    /// It is too long.
    #[error("the certificate request has {given} bytes: at most {LONGEST_CSR} are read")]
    TooLong {
        /// How many bytes it has.
        given: usize,
    },
    /// Whoever sent it has no such key.
    #[error("the certificate request is not signed with its own key")]
    NotSigned,
    /// A key of another sort.
    #[error("the certificate request has a key of another sort: ECDSA P-256 is needed")]
    OtherKey,
    /// Nobody can have this name.
    #[error(transparent)]
    Holder(#[from] IdentityError),
    /// A host that cannot be named.
    #[error("{given:?} cannot be a name of the coordinator: a host name or an IP address is needed")]
    Name {
        /// What was given, cut to 100 characters.
        given: String,
    },
    /// Too many of them.
    #[error("{given} names for the coordinator are too many: at most {MOST_NAMES} are allowed")]
    TooManyNames {
        /// How many there are.
        given: usize,
    },
    /// The root is over.
    #[error("the CA's root has expired: rotate the CA")]
    Expired,
    /// The certificate could not be signed.
    #[error("cannot sign the certificate: {0}")]
    Sign(String),
}

/// A certificate to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// For whom.
    pub holder: Holder,
    /// How long, from now on.
    pub valid_for: Duration,
}

/// For whom a certificate is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// The coordinator: it serves. It is always reached by its internal name and as localhost.
    Coordinator {
        /// Host names and IP addresses besides.
        names: Vec<String>,
    },
    /// A worker, which serves and calls, or a person, who calls.
    Member {
        /// As what.
        role: Role,
        /// The worker's id or the person's name.
        name: String,
    },
}

/// A certificate that was made.
#[derive(Debug, Clone)]
pub struct Issued {
    /// The certificate, the cross certificate while the CA rotates, and all roots.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its serial number, in lower-case hex.
    pub serial: String,
    /// From when until when.
    pub valid: Validity,
    /// Whom it names. None: the coordinator.
    pub identity: Option<Identity>,
    /// The SHA-256 of its public key: the same for all certificates of one key.
    pub key_sha256: [u8; 32],
}

impl Issued {
    /// The chain as PEM.
    pub fn chain_pem(&self) -> String {
        roots::pem_of(&self.chain)
    }
}

/// A public key from a CSR.
struct P256<'csr>(&'csr [u8]);

impl PublicKeyData for P256<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// Signs, with `after` behind the leaf in its chain.
pub(super) fn issue(
    root: &Root,
    csr_der: &[u8],
    leaf: &Leaf,
    now: SystemTime,
    after: Vec<CertificateDer<'static>>,
) -> Result<Issued, IssueError> {
    // 1. The key, and the proof that whoever asks has it.
    if csr_der.len() > LONGEST_CSR {
        return Err(IssueError::TooLong { given: csr_der.len() });
    }
    let (rest, csr) = X509CertificationRequest::from_der(csr_der).map_err(|_| IssueError::Unreadable)?;
    if !rest.is_empty() {
        return Err(IssueError::Unreadable);
    }
    let key = &csr.certification_request_info.subject_pki;
    let public = P256(&key.subject_public_key.data);
    if public.subject_public_key_info() != key.raw {
        return Err(IssueError::OtherKey);
    }
    csr.verify_signature().map_err(|_| IssueError::NotSigned)?;

    // 2. The time.
    let from = root::begin(now);
    let until = now.checked_add(leaf.valid_for).map_or(root.until, |until| until.min(root.until));
    let valid = Validity { from, until: times::whole_second(until) };
    if valid.until <= now {
        return Err(IssueError::Expired);
    }

    // 3. Everything else is decided here.
    let sign = |error: rcgen::Error| IssueError::Sign(error.to_string());
    let serial = root::serial().map_err(IssueError::Sign)?;
    let serial_text = hex::encode(serial.as_ref());
    let mut params = CertificateParams::default();
    params.serial_number = Some(serial);
    params.not_before = OffsetDateTime::from(valid.from);
    params.not_after = OffsetDateTime::from(valid.until);
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = purposes(&leaf.holder);
    params.distinguished_name = subject(&leaf.holder);
    params.subject_alt_names = alternative_names(root.cluster, &leaf.holder)?;
    let issuer = root.issuer().map_err(IssueError::Sign)?;
    let certificate = params.signed_by(&public, &issuer).map_err(sign)?.der().clone();
    let identity = match &leaf.holder {
        Holder::Coordinator { .. } => None,
        Holder::Member { role, name } => Some(Identity {
            cluster: root.cluster,
            role: *role,
            name: name.clone(),
            serial: serial_text.clone(),
        }),
    };
    let chain = std::iter::once(certificate).chain(after).collect();
    let key_sha256 = Sha256::digest(key.raw).into();
    Ok(Issued { chain, serial: serial_text, valid, identity, key_sha256 })
}

/// A worker serves its ring port and calls; people only call; the coordinator only serves.
fn purposes(holder: &Holder) -> Vec<ExtendedKeyUsagePurpose> {
    match holder {
        Holder::Coordinator { .. } => vec![ExtendedKeyUsagePurpose::ServerAuth],
        Holder::Member { role: Role::Worker, .. } => {
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth]
        }
        Holder::Member { .. } => vec![ExtendedKeyUsagePurpose::ClientAuth],
    }
}

/// For people who look at a certificate; nothing is decided by it.
fn subject(holder: &Holder) -> DistinguishedName {
    let what = match holder {
        Holder::Coordinator { .. } => "coordinator",
        Holder::Member { role, .. } => role.as_str(),
    };
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, format!("Ringtune {what}"));
    subject
}

fn alternative_names(cluster: Cluster, holder: &Holder) -> Result<Vec<SanType>, IssueError> {
    match holder {
        Holder::Coordinator { names } => {
            if names.len() > MOST_NAMES {
                return Err(IssueError::TooManyNames { given: names.len() });
            }
            let mut all = vec![dns(&names::coordinator(cluster))?];
            for name in LOCAL.into_iter().chain(names.iter().map(String::as_str)) {
                let name = host(name)?;
                if !all.contains(&name) {
                    all.push(name);
                }
            }
            Ok(all)
        }
        Holder::Member { role, name } => {
            identity::check_name(*role, name)?;
            let mut all = vec![uri(&identity::uri(cluster, *role, name))?];
            if let (Role::Worker, Some(id)) = (role, identity::hyphenated(name)) {
                all.push(dns(&names::worker(id, cluster))?);
            }
            Ok(all)
        }
    }
}

fn dns(name: &str) -> Result<SanType, IssueError> {
    Ok(SanType::DnsName(name.try_into().map_err(|_| wrong_name(name))?))
}

fn uri(text: &str) -> Result<SanType, IssueError> {
    Ok(SanType::URI(text.try_into().map_err(|_| wrong_name(text))?))
}

/// A name that settings give: a host's, and never one that the cluster uses itself.
fn host(name: &str) -> Result<SanType, IssueError> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    if DnsName::try_from(name).is_err() || Internal::parse(&name.to_ascii_lowercase()).is_some() {
        return Err(wrong_name(name));
    }
    dns(name)
}

fn wrong_name(given: &str) -> IssueError {
    IssueError::Name { given: given.chars().take(100).collect() }
}
