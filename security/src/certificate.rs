//! What a certificate says: its serial number, its time, its names, its holder.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::identity::{self, Identity, IdentityError};
use crate::times;

/// How long before now what is made now begins to be valid, against clocks that differ.
pub(crate) const BACKDATED: Duration = Duration::from_secs(3600);

/// From when until when a certificate is valid, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Its first second.
    pub from: SystemTime,
    /// Its last second.
    pub until: SystemTime,
}

impl Validity {
    /// When to get the next one: after two thirds of its time, so that a third is left for tries that fail. The hour
    /// before it was made does not count: a certificate for a minute would be due at once.
    pub fn renew_at(self) -> SystemTime {
        let before = if self.length() > BACKDATED { BACKDATED } else { Duration::ZERO };
        self.from + before + (self.length() - before) * 2 / 3
    }

    /// How long it is valid.
    pub fn length(self) -> Duration {
        self.until.duration_since(self.from).unwrap_or_default()
    }
}

/// What is read from a certificate. Nothing here was verified: that is the handshake's work.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// In lower-case hex without leading zeros.
    pub(crate) serial: String,
    pub(crate) validity: Validity,
    /// The DNS names that it is for.
    pub(crate) names: Vec<String>,
    /// Whom it names, or why it names nobody.
    pub(crate) identity: Result<Identity, IdentityError>,
}

/// Reads a certificate; None: it is none.
pub(crate) fn facts(certificate: &CertificateDer<'_>) -> Option<Facts> {
    let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let serial = hex::encode(parsed.raw_serial()).trim_start_matches('0').to_owned();
    let validity = Validity {
        from: times::from_seconds(parsed.validity().not_before.timestamp()),
        until: times::from_seconds(parsed.validity().not_after.timestamp()),
    };
    let names = parsed.subject_alternative_name().ok()?;
    let general = names.iter().flat_map(|names| &names.value.general_names);
    let (mut names, mut uris) = (Vec::new(), Vec::new());
    for name in general {
        match name {
            GeneralName::DNSName(name) => names.push((*name).to_owned()),
            GeneralName::URI(uri) if identity::is_ours(uri) => uris.push(*uri),
            _ => {}
        }
    }
    let identity = match uris.as_slice() {
        [] => Err(IdentityError::Absent),
        [uri] => Identity::from_uri(uri, &serial),
        several => Err(IdentityError::Several(several.len())),
    };
    Some(Facts { serial, validity, names, identity })
}

/// Whom a certificate names.
///
/// # Errors
/// It names nobody.
pub(crate) fn identity(certificate: &CertificateDer<'_>) -> Result<Identity, IdentityError> {
    facts(certificate).map_or(Err(IdentityError::Unreadable), |facts| facts.identity)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType, SerialNumber};

    use super::*;
    use crate::identity::Role;

    const CLUSTER: &str = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff";

    fn certificate(uris: &[&str], serial: &[u8]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from_slice(serial));
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn holder_names_and_serial_are_read() {
        let uri = format!("ringtune://{CLUSTER}/observer/anna");
        let facts = facts(&certificate(&["https://example.org", &uri], &[0x00, 0x8f, 0x01])).unwrap();
        let identity = facts.identity.unwrap();
        assert_eq!((identity.role, identity.name.as_str()), (Role::Observer, "anna"));
        assert_eq!((facts.serial.as_str(), identity.serial.as_str()), ("8f01", "8f01"));
        assert_eq!(facts.names, ["a.example"]);
        assert!(facts.validity.from < facts.validity.until);
    }

    #[test]
    fn a_certificate_without_one_clear_holder_names_nobody() {
        let (one, two) = (format!("ringtune://{CLUSTER}/admin/a"), format!("ringtune://{CLUSTER}/admin/b"));
        assert_eq!(identity(&certificate(&["https://x"], &[1])), Err(IdentityError::Absent));
        assert_eq!(identity(&certificate(&[&one, &two], &[1])), Err(IdentityError::Several(2)));
        let wrong = format!("ringtune://{CLUSTER}/king/a");
        assert!(matches!(identity(&certificate(&[&wrong], &[1])), Err(IdentityError::Role { .. })));
        let mut cut = certificate(&[&one], &[1]).to_vec();
        cut.push(0);
        assert_eq!(identity(&cut.clone().into()), Err(IdentityError::Unreadable));
        cut.truncate(100);
        assert_eq!(identity(&cut.into()), Err(IdentityError::Unreadable));
    }

    #[test]
    fn renewal_is_due_after_two_thirds() {
        let from = times::from_seconds(1000);
        let validity = Validity { from, until: from + Duration::from_secs(300) };
        assert_eq!(validity.renew_at(), from + Duration::from_secs(200));
        let minute = Validity { from, until: from + BACKDATED + Duration::from_secs(60) };
        assert_eq!(minute.renew_at(), from + BACKDATED + Duration::from_secs(40));
        let reversed = Validity { from, until: from - Duration::from_secs(1) };
        assert_eq!(reversed.renew_at(), from);
    }
}
