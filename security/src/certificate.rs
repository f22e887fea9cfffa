//! What a certificate says: its serial number, its time, its names, its holder.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::identity::{self, Identity, IdentityError};
use crate::times;

/// How far a new certificate's validity is backdated, against clocks that differ.
pub(crate) const BACKDATED: Duration = Duration::from_secs(3600);

/// How long before its end a certificate is not relied on any more: an eighth of its time, within these.
const MARGIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(600));
/// No connection is replaced sooner after the one before.
const SOONEST: Duration = Duration::from_secs(1);
/// Longest sleep between two looks at the clock, which may be set.
const LONGEST_NAP: Duration = Duration::from_secs(30);

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
        let life = self.life();
        self.from + (self.length() - life) + life * 2 / 3
    }

    /// When to replace a connection made with it: shortly before its end, when the next certificate has long been there.
    /// After that, when half of the remaining time is over.
    pub fn reconnect_at(self, now: SystemTime) -> SystemTime {
        let margin = (self.life() / 8).clamp(MARGIN.0, MARGIN.1);
        let half = now + (self.until.duration_since(now).unwrap_or_default() / 2).max(SOONEST);
        self.until.checked_sub(margin).map_or(half, |soon| soon.max(half))
    }

    /// Whether it has expired. As in handshakes, the whole last second is still valid.
    pub fn is_over(self, now: SystemTime) -> bool {
        self.left(now).is_zero()
    }

    /// Waits until it is over.
    pub async fn over(self) {
        loop {
            match self.left(SystemTime::now()) {
                Duration::ZERO => return,
                left => tokio::time::sleep(left.min(LONGEST_NAP)).await,
            }
        }
    }

    fn left(self, now: SystemTime) -> Duration {
        (self.until + Duration::from_secs(1)).duration_since(now).unwrap_or_default()
    }

    /// The validity of the two that ends first.
    #[must_use]
    pub fn sooner(self, other: Option<Self>) -> Self {
        other.filter(|other| other.until < self.until).unwrap_or(self)
    }

    /// How long it is valid, without the hour before it was made.
    fn life(self) -> Duration {
        match self.length() {
            length if length > BACKDATED => length - BACKDATED,
            length => length,
        }
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

    fn identity(certificate: &CertificateDer<'_>) -> Result<Identity, IdentityError> {
        facts(certificate).map_or(Err(IdentityError::Unreadable), |facts| facts.identity)
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

    #[test]
    fn connections_are_replaced_before_the_end_and_rarely() {
        let at = times::from_seconds;
        let minute = Validity { from: at(0), until: at(3660) };
        assert_eq!(minute.reconnect_at(at(3600)), at(3660) - Duration::from_millis(7_500));
        assert_eq!(minute.reconnect_at(at(3656)), at(3658));
        assert_eq!(minute.reconnect_at(at(3660)), at(3661));
        assert_eq!(minute.reconnect_at(at(9_000)), at(9_001));
        let ten = Validity { from: at(0), until: at(3610) };
        assert_eq!(ten.reconnect_at(at(3600)), at(3608));
        let month = Validity { from: at(0), until: at(2_592_000) };
        assert_eq!(month.reconnect_at(at(0)), at(2_592_000 - 600));
    }

    #[test]
    fn the_last_second_counts_and_the_sooner_end_wins() {
        let at = times::from_seconds;
        let one = Validity { from: at(0), until: at(10) };
        let other = Validity { from: at(5), until: at(9) };
        assert!(!one.is_over(at(10) + Duration::from_millis(999)) && one.is_over(at(11)));
        assert_eq!((one.sooner(Some(other)), other.sooner(Some(one)), one.sooner(None)), (other, other, one));
    }

    #[tokio::test]
    async fn the_end_is_waited_for() {
        let second = Duration::from_secs(1);
        let gone = Validity { from: at_now() - second, until: at_now() - second };
        tokio::time::timeout(second / 2, gone.over()).await.unwrap();
        let soon = Validity { from: at_now(), until: at_now() + second };
        soon.over().await;
        assert!(soon.is_over(SystemTime::now()));
    }

    fn at_now() -> SystemTime {
        times::whole_second(SystemTime::now())
    }
}
