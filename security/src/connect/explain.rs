//! Turns errors of rustls and the operating system into errors that say what to do.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error as TlsFailure, InvalidMessage};

use super::error::{ConnectError, refusal};
use crate::certificate::Validity;
use crate::tls::{OtherAuthority, WrongServer};

/// What the errors say of this side.
#[derive(Debug, Clone)]
pub(super) struct Mine {
    /// Who was to be on the other side.
    pub(super) expected: String,
    /// Validity of this side's certificate. None: it has none.
    pub(super) valid: Option<Validity>,
}

fn time(at: UnixTime) -> SystemTime {
    UNIX_EPOCH.checked_add(std::time::Duration::from_secs(at.as_secs())).unwrap_or(UNIX_EPOCH)
}

/// Why there is no TLS connection.
pub(super) fn explain(address: &str, mine: &Mine, error: io::Error) -> ConnectError {
    let address = address.to_owned();
    let failure = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsFailure>()).cloned();
    match failure {
        Some(TlsFailure::InvalidCertificate(problem)) => certificate(address, mine, problem, error),
        Some(TlsFailure::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            ConnectError::NoTls { address }
        }
        Some(TlsFailure::AlertReceived(AlertDescription::NoApplicationProtocol)) => {
            ConnectError::NoHttp2 { address }
        }
        Some(TlsFailure::AlertReceived(alert)) if is_about_certificates(alert) => {
            let reason = refusal(alert, mine.valid, SystemTime::now());
            ConnectError::Refused { address, reason, cause: TlsFailure::AlertReceived(alert) }
        }
        Some(_) => ConnectError::Handshake { address, cause: error },
        None if is_end(error.kind()) => ConnectError::Closed { address, cause: Some(error) },
        None => ConnectError::Handshake { address, cause: error },
    }
}

/// Whether the connection was closed, and nothing was said why.
pub(super) fn is_end(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::CertificateRequired
            | Alert::NoCertificate
            | Alert::DecryptError
    )
}

fn certificate(address: String, mine: &Mine, problem: CertificateError, error: io::Error) -> ConnectError {
    match problem {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            ConnectError::UnknownAuthority { address, cause: TlsFailure::InvalidCertificate(problem) }
        }
        CertificateError::ExpiredContext { time: now, not_after } => {
            ConnectError::Expired { address, until: time(not_after), now: time(now) }
        }
        CertificateError::NotValidYetContext { time: now, not_before } => {
            ConnectError::NotYetValid { address, from: time(not_before), now: time(now) }
        }
        CertificateError::Revoked => ConnectError::Revoked { address },
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            ConnectError::NoServer { address }
        }
        CertificateError::Other(other) => {
            if other.0.is::<OtherAuthority>() {
                return ConnectError::OtherAuthority { address };
            }
            match other.0.downcast_ref::<WrongServer>().cloned() {
                Some(WrongServer { cluster: Some(theirs), .. }) => {
                    ConnectError::OtherCluster { address, theirs, expected: mine.expected.clone() }
                }
                Some(WrongServer { names, .. }) => {
                    ConnectError::OtherName { address, expected: mine.expected.clone(), names }
                }
                None => ConnectError::Handshake { address, cause: error },
            }
        }
        _ => ConnectError::Handshake { address, cause: error },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn explained(failure: TlsFailure) -> ConnectError {
        let from = UNIX_EPOCH + Duration::from_secs(1_795_378_500);
        let valid = Validity { from, until: from + Duration::from_secs(60) };
        let mine = Mine { expected: "x.internal".into(), valid: Some(valid) };
        explain("a:1", &mine, io::Error::new(io::ErrorKind::InvalidData, failure))
    }

    #[test]
    fn every_failure_that_people_meet_has_its_words() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let bad = TlsFailure::InvalidCertificate;
        let alert = TlsFailure::AlertReceived;
        for (failure, says) in [
            (bad(CertificateError::UnknownIssuer), "of a CA that is not known here"),
            (
                bad(CertificateError::ExpiredContext { time: at(86_400), not_after: at(0) }),
                "ended at 1970-01-01T00:00:00Z, and here it is 1970-01-02T00:00:00Z",
            ),
            (
                bad(CertificateError::NotValidYetContext { time: at(0), not_before: at(86_400) }),
                "begins at 1970-01-02T00:00:00Z, and here it is 1970-01-01T00:00:00Z",
            ),
            (bad(CertificateError::Revoked), "was revoked"),
            (bad(CertificateError::InvalidPurpose), "not one for servers"),
            (TlsFailure::InvalidMessage(InvalidMessage::InvalidContentType), "use http://a:1"),
            (alert(AlertDescription::NoApplicationProtocol), "no HTTP/2"),
            (alert(AlertDescription::CertificateRevoked), "join again with a new token"),
            (alert(AlertDescription::CertificateRequired), "there is none here"),
            (alert(AlertDescription::UnknownCA), "not known there"),
            (alert(AlertDescription::UnsupportedCertificate), "not one for clients"),
            (
                alert(AlertDescription::CertificateExpired),
                "good from 2026-11-22T20:15:00Z to 2026-11-22T20:16:00Z",
            ),
            (alert(AlertDescription::BadCertificate), "refuses this side's certificate: BadCertificate"),
            (alert(AlertDescription::InternalError), "no TLS connection to a:1"),
        ] {
            let text = explained(failure).to_string();
            assert!(text.contains(says) && text.contains("a:1"), "{text}");
        }
    }

    #[test]
    fn only_what_clocks_make_of_a_certificate_is_about_clocks() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let bad = TlsFailure::InvalidCertificate;
        let alert = TlsFailure::AlertReceived;
        for (failure, is_so) in [
            (bad(CertificateError::ExpiredContext { time: at(86_400), not_after: at(0) }), true),
            (bad(CertificateError::NotValidYetContext { time: at(0), not_before: at(86_400) }), true),
            (alert(AlertDescription::CertificateExpired), true),
            // A root, or a revocation that is taken back, spreads.
            (bad(CertificateError::UnknownIssuer), false),
            (alert(AlertDescription::UnknownCA), false),
            (alert(AlertDescription::CertificateRevoked), false),
        ] {
            assert_eq!(explained(failure.clone()).is_about_clocks(), is_so, "{failure:?}");
        }
    }

    #[test]
    fn what_the_system_says_is_told_apart() {
        let mine = Mine { expected: String::new(), valid: None };
        let of = |kind| explain("a:1", &mine, io::Error::from(kind));
        assert!(matches!(of(io::ErrorKind::UnexpectedEof), ConnectError::Closed { .. }));
        assert!(matches!(of(io::ErrorKind::ConnectionReset), ConnectError::Closed { .. }));
        assert!(matches!(of(io::ErrorKind::OutOfMemory), ConnectError::Handshake { .. }));
    }
}
