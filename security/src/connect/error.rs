//! Why there is no connection, in words that say what to do.

use std::io;
use std::time::{Duration, SystemTime};

use crate::certificate::Validity;
use crate::identity::Cluster;
use crate::times;
use crate::tls::TlsError;

/// There is no connection, or it ended as it began.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A URL that leads nowhere.
    #[error("{given:?} is no address to connect to: {problem}")]
    Address {
        /// What was given.
        given: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Nobody answers. The cause keeps its kind (`ConnectionRefused` and others).
    #[error("cannot connect to {address}: {cause}")]
    Unreachable {
        /// Where.
        address: String,
        /// What the operating system says.
        #[source]
        cause: io::Error,
    },
    /// It took too long.
    #[error("{address} did not answer within {time:?}")]
    Slow {
        /// Where.
        address: String,
        /// How long it could take.
        time: Duration,
    },
    /// https without credentials.
    #[error(
        "https://{address} needs credentials, and there are none here: join the cluster with a token first (`ringtune login`, `ringtune-worker --join`), or name certificates by path"
    )]
    NoCredentials {
        /// Where.
        address: String,
    },
    /// A token would go in the clear.
    #[error(
        "a token is not sent to http://{address}, where everybody on the way could read it: use https://{address}"
    )]
    JoinInTheClear {
        /// Where.
        address: String,
    },
    /// TLS cannot be set up on this side.
    #[error("cannot connect to {address}: {cause}")]
    SetUp {
        /// Where.
        address: String,
        /// Why not.
        #[source]
        cause: TlsError,
    },
    /// The other side speaks no TLS.
    #[error("{address} speaks no TLS: use http://{address} if its network is safe, or turn on TLS there")]
    NoTls {
        /// Where.
        address: String,
    },
    /// The other side speaks TLS.
    #[error("{address} speaks TLS: use https://{address}")]
    Tls {
        /// Where.
        address: String,
    },
    /// The other side speaks no HTTP/2.
    #[error(
        "{address} speaks no HTTP/2, which gRPC needs: is it the HTTP port? Use the gRPC port (a coordinator's is 7070)"
    )]
    NoHttp2 {
        /// Where.
        address: String,
    },
    /// Another CA.
    #[error(
        "the certificate of {address} is of a CA that is not known here: it is another cluster's coordinator, or its CA was replaced while this side was away. If the address is right, join again with a new token"
    )]
    UnknownAuthority {
        /// Where.
        address: String,
        /// What rustls says.
        #[source]
        cause: rustls::Error,
    },
    /// Not the CA of the token.
    #[error(
        "{address} is not the coordinator that made this token: it has another CA. Check the address; if it is right, the token is of another cluster or of an older CA, so make a new one (`ringtune token create`)"
    )]
    OtherAuthority {
        /// Where.
        address: String,
    },
    /// Its certificate is over.
    #[error("the certificate of {address} ended at {}, and here it is {}: renew it there, or set the clock that is wrong", times::text(*until), times::text(*now))]
    Expired {
        /// Where.
        address: String,
        /// The certificate's last second.
        until: SystemTime,
        /// This side's clock.
        now: SystemTime,
    },
    /// Its certificate has not begun.
    #[error("the certificate of {address} begins at {}, and here it is {}: set the clock that is wrong", times::text(*from), times::text(*now))]
    NotYetValid {
        /// Where.
        address: String,
        /// The certificate's first second.
        from: SystemTime,
        /// This side's clock.
        now: SystemTime,
    },
    /// It is another cluster's.
    #[error("{address} belongs to the cluster {theirs}, and {expected} was expected: check the address")]
    OtherCluster {
        /// Where.
        address: String,
        /// Its cluster.
        theirs: Cluster,
        /// Who was expected.
        expected: String,
    },
    /// It is somebody else.
    #[error("{address} is not {expected}: its certificate is for {}", named(names))]
    OtherName {
        /// Where.
        address: String,
        /// Who was expected.
        expected: String,
        /// For whom its certificate is.
        names: Vec<String>,
    },
    /// It is no server's.
    #[error("the certificate of {address} is not one for servers: a person's certificate cannot serve")]
    NoServer {
        /// Where.
        address: String,
    },
    /// It was revoked.
    #[error("the certificate of {address} was revoked: it has to join again")]
    Revoked {
        /// Where.
        address: String,
    },
    /// The other side does not take this side's certificate.
    #[error("{address} refuses this side's certificate: {reason}")]
    Refused {
        /// Where.
        address: String,
        /// Why, and what to do.
        reason: String,
        /// What rustls says.
        #[source]
        cause: rustls::Error,
    },
    /// It closed the connection.
    #[error(
        "{address} closed the connection before anything was said: it may have as many connections as it allows, or speak another protocol. Its log says which"
    )]
    Closed {
        /// Where.
        address: String,
        /// What the operating system says, if anything.
        #[source]
        cause: Option<io::Error>,
    },
    /// A local socket of somebody else.
    #[error("{address} is the socket of another user's process: nothing is said there")]
    OtherUser {
        /// Where.
        address: String,
    },
    /// Something else.
    #[error("no TLS connection to {address}: {cause}")]
    Handshake {
        /// Where.
        address: String,
        /// What rustls or the operating system says.
        #[source]
        cause: io::Error,
    },
}

impl ConnectError {
    /// Whether a certificate of one of the two sides is not good now by the other's clock: that stays so until somebody sets
    /// a clock, or renews it.
    pub fn is_about_clocks(&self) -> bool {
        use rustls::{AlertDescription::CertificateExpired, Error::AlertReceived};
        match self {
            Self::Expired { .. } | Self::NotYetValid { .. } => true,
            Self::Refused { cause, .. } => *cause == AlertReceived(CertificateExpired),
            _ => false,
        }
    }
}

/// The names of a certificate, in words.
fn named(names: &[String]) -> String {
    if names.is_empty() { "no host".to_owned() } else { names.join(", ") }
}

/// Why the other side refuses a certificate, by its alert. `valid`: the certificate's validity; None: there is no certificate.
pub(super) fn refusal(alert: rustls::AlertDescription, valid: Option<Validity>, now: SystemTime) -> String {
    use rustls::AlertDescription as Alert;
    let clocks = valid.map_or(String::new(), |valid| {
        let (from, until) = (times::text(valid.from), times::text(valid.until));
        format!(" (it is good from {from} to {until}, and here it is {})", times::text(now))
    });
    match alert {
        Alert::CertificateRequired => {
            "it wants one, and there is none here: join the cluster with a token first".to_owned()
        }
        Alert::CertificateRevoked => "it was revoked: join again with a new token".to_owned(),
        Alert::CertificateExpired => {
            format!("it has expired or is not valid yet{clocks}: compare the clocks of both sides, or join again with a new token")
        }
        Alert::UnknownCA => {
            "its CA is not known there: it is of another cluster, or of a CA that was retired. Join again with a new token"
                .to_owned()
        }
        Alert::UnsupportedCertificate => {
            "it is not one for clients: use that of a worker or of a person".to_owned()
        }
        other => format!("{other:?}{clocks}"),
    }
}
