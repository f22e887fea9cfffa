//! The peer of a call: address, identity, activity.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::certificate::Validity;
use crate::handed::Handed;
use crate::identity::{Cluster, Identity, IdentityError};
use crate::trust::State;

/// The other side of a connection: tonic's `ConnectInfo`, which every request has among its extensions.
#[derive(Debug, Clone)]
pub struct Peer {
    /// From where it comes.
    pub address: SocketAddr,
    /// Who it is.
    pub caller: Caller,
    /// When its certificate is valid, where it showed one. The connection ends soon after that.
    pub valid: Option<Validity>,
    /// The calls of this connection.
    pub activity: Activity,
    /// What its process handed over, where it came through a local socket.
    pub handed: Handed,
}

/// Identity of a caller, as far as the connection shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// The port is without TLS, on loopback or insecure: nobody is asked who they are, and everybody has all roles.
    Open,
    /// TLS without a certificate. A bearer token may say more.
    Anonymous,
    /// Whoever the certificate names.
    Known(Identity),
    /// A certificate of this CA that nothing is done for: every call is answered with the reason.
    Refused(Refused),
}

/// Why nothing is done for the holder of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It was revoked.
    #[error("the certificate {serial} of {0} was revoked: join again with a new token", serial = .0.serial)]
    Revoked(Identity),
    /// It names nobody.
    #[error(transparent)]
    NoRole(IdentityError),
    /// It is another cluster's.
    #[error("the certificate is for the cluster {theirs}, and this is the cluster {ours}")]
    OtherCluster {
        /// The certificate's cluster.
        theirs: Cluster,
        /// This one.
        ours: Cluster,
    },
}

impl Caller {
    /// Who is on the other side of TLS; `named` is what its certificate says, None where it sent none.
    pub(crate) fn of(named: Option<Result<Identity, IdentityError>>, trust: &State) -> Self {
        match named {
            None => Self::Anonymous,
            Some(Err(error)) => Self::Refused(Refused::NoRole(error)),
            Some(Ok(identity)) if identity.cluster != trust.cluster => {
                Self::Refused(Refused::OtherCluster { theirs: identity.cluster, ours: trust.cluster })
            }
            Some(Ok(identity)) if trust.revoked.has(&identity) => Self::Refused(Refused::Revoked(identity)),
            Some(Ok(identity)) => Self::Known(identity),
        }
    }

    /// The identity, where there is one.
    pub fn identity(&self) -> Option<&Identity> {
        match self {
            Self::Known(identity) => Some(identity),
            Self::Open | Self::Anonymous | Self::Refused(_) => None,
        }
    }
}

impl Display for Caller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => formatter.write_str("somebody on an open port"),
            Self::Anonymous => formatter.write_str("somebody without a certificate"),
            Self::Known(identity) => identity.fmt(formatter),
            Self::Refused(reason) => write!(formatter, "somebody refused ({reason})"),
        }
    }
}

/// The calls that a connection has: one without any is closed after a while.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Calls>);

#[derive(Debug)]
struct Calls {
    opened: Instant,
    under_way: AtomicUsize,
    /// How many milliseconds after `opened` the last call ended; `NEVER` before the first one.
    last_end: AtomicU64,
}

/// There was no call yet.
const NEVER: u64 = u64::MAX;

/// How long a connection has been without calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Calls are under way.
    Busy,
    /// Open for so long without a first call.
    Unused(Duration),
    /// The last call ended so long ago.
    Idle(Duration),
}

impl Activity {
    /// For a connection that opens now.
    pub(crate) fn new() -> Self {
        let (under_way, last_end) = (AtomicUsize::new(0), AtomicU64::new(NEVER));
        Self(Arc::new(Calls { opened: Instant::now(), under_way, last_end }))
    }

    /// Begins a call, which ends when the returned guard is dropped. A server must hold one for each call until the last byte
    /// of its answer: a connection without calls is closed.
    pub fn begin(&self) -> Call {
        self.0.under_way.fetch_add(1, Ordering::AcqRel);
        Call(self.0.clone())
    }

    /// How many calls are under way.
    pub fn calls(&self) -> usize {
        self.0.under_way.load(Ordering::Acquire)
    }

    pub(crate) fn standing(&self) -> Standing {
        if self.calls() > 0 {
            return Standing::Busy;
        }
        let open = self.0.opened.elapsed();
        match self.0.last_end.load(Ordering::Acquire) {
            NEVER => Standing::Unused(open),
            at => Standing::Idle(open.saturating_sub(Duration::from_millis(at))),
        }
    }
}

/// A call that is under way.
#[derive(Debug)]
pub struct Call(Arc<Calls>);

impl Drop for Call {
    fn drop(&mut self) {
        let at = u64::try_from(self.0.opened.elapsed().as_millis()).unwrap_or(NEVER - 1);
        self.0.last_end.store(at, Ordering::Release);
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Role;
    use crate::testing;
    use crate::trust::{Revoked, Trust};

    #[test]
    fn a_certificate_says_who_calls_or_why_nothing_is_done() {
        let (ours, other) = (testing::authority(), testing::authority());
        let anna = testing::credentials(&ours, testing::person(Role::Admin, "anna"));
        let identity = anna.identity().unwrap().clone();
        let serials = [identity.serial.clone()].into();
        let revoked = Revoked { serials, ..Revoked::default() };
        let trust =
            |revoked| Trust::new(ours.cluster(), None, ours.roots().clone(), revoked).unwrap().state();
        let open = trust(Revoked::default());
        assert_eq!(Caller::of(None, &open), Caller::Anonymous);
        assert_eq!(Caller::of(Some(Ok(identity.clone())), &open), Caller::Known(identity.clone()));
        let refused = Caller::of(Some(Ok(identity.clone())), &trust(revoked));
        assert_eq!(refused, Caller::Refused(Refused::Revoked(identity.clone())));
        assert_eq!(refused.identity(), None);
        let nobody = Caller::of(Some(Err(IdentityError::Absent)), &open);
        assert_eq!(nobody, Caller::Refused(Refused::NoRole(IdentityError::Absent)));
        let foreign = Identity { cluster: other.cluster(), ..identity };
        let (theirs, ours) = (other.cluster(), ours.cluster());
        let expected = Caller::Refused(Refused::OtherCluster { theirs, ours });
        assert_eq!(Caller::of(Some(Ok(foreign)), &open), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_until_they_end() {
        let activity = Activity::new();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(activity.standing(), Standing::Unused(Duration::from_secs(3)));
        let (one, two) = (activity.begin(), activity.clone().begin());
        tokio::time::advance(Duration::from_secs(30)).await;
        drop(one);
        assert_eq!((activity.standing(), activity.calls()), (Standing::Busy, 1));
        drop(two);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(activity.standing(), Standing::Idle(Duration::from_secs(2)));
    }
}
