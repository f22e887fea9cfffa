//! Why connections are closed, counted and said.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};

/// How often one reason is said aloud at most; all are counted.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Why a connection was not served, or no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// As many are open as may be.
    Full,
    /// As many of its address are open as may be.
    FullForAddress,
    /// As many are opening as may be.
    Openings,
    /// As many of its address are opening as may be.
    OpeningsForAddress,
    /// It was closed before it said anything: port scanners and probes of load balancers do that.
    Silent,
    /// It did not open in time.
    Slow,
    /// Plain text on a port with TLS.
    Plaintext,
    /// TLS on a port without it.
    Tls,
    /// The client's certificate is not good: another CA, expired, not yet valid, not for clients.
    Certificate,
    /// The client has no certificate, and the port is for those that have one.
    NoCertificate,
    /// The client does not believe this side's certificate.
    Disbelieved,
    /// The handshake failed in another way.
    Handshake,
    /// It had no call within its first seconds.
    Unused,
    /// It stood without calls for long.
    Idle,
    /// It took nothing of what was sent to it.
    Unread,
    /// Its certificate was revoked while it was open.
    Revoked,
    /// Its certificate ended while it was open.
    Expired,
    /// It came to the local socket without an invitation.
    Uninvited,
    /// The operating system gave no connection.
    Accept,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Full,
        Self::FullForAddress,
        Self::Openings,
        Self::OpeningsForAddress,
        Self::Silent,
        Self::Slow,
        Self::Plaintext,
        Self::Tls,
        Self::Certificate,
        Self::NoCertificate,
        Self::Disbelieved,
        Self::Handshake,
        Self::Unused,
        Self::Idle,
        Self::Unread,
        Self::Revoked,
        Self::Expired,
        Self::Uninvited,
        Self::Accept,
    ];

    /// Its word, as metrics have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::FullForAddress => "full_for_address",
            Self::Openings => "openings",
            Self::OpeningsForAddress => "openings_for_address",
            Self::Silent => "silent",
            Self::Slow => "slow",
            Self::Plaintext => "plaintext",
            Self::Tls => "tls",
            Self::Certificate => "certificate",
            Self::NoCertificate => "no_certificate",
            Self::Disbelieved => "disbelieved",
            Self::Handshake => "handshake",
            Self::Unused => "unused",
            Self::Idle => "idle",
            Self::Unread => "unread",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
            Self::Uninvited => "uninvited",
            Self::Accept => "accept",
        }
    }

    /// What happened, in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Full => "as many connections are open as may be",
            Self::FullForAddress => "as many connections of this address are open as may be",
            Self::Openings => "as many connections are opening as may be",
            Self::OpeningsForAddress => "as many connections of this address are opening as may be",
            Self::Silent => "it was closed before it said anything",
            Self::Slow => "it did not open in time",
            Self::Plaintext => "it came in plain text, and this port speaks TLS",
            Self::Tls => "it came with TLS, and this port speaks none",
            Self::Certificate => "its certificate is not good",
            Self::NoCertificate => "it has no certificate",
            Self::Disbelieved => "it does not believe this side's certificate",
            Self::Handshake => "its handshake failed",
            Self::Unused => "it had no call soon after it was opened",
            Self::Idle => "it stood long without calls",
            Self::Unread => "it took nothing of its answers for long",
            Self::Revoked => "its certificate was revoked",
            Self::Expired => "its certificate ended while it was open",
            Self::Uninvited => "it came to the local socket without an invitation",
            Self::Accept => "the operating system gave no connection",
        }
    }

    /// Whether it is a connection's usual end, of which nobody needs to hear.
    fn is_usual(self) -> bool {
        matches!(self, Self::Silent | Self::Unused | Self::Idle)
    }
}

/// How often each was the reason; all clones count together.
#[derive(Debug, Clone)]
pub struct Refusals(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    since: Instant,
    /// In the order of [`Refusal::ALL`].
    each: [Count; Refusal::ALL.len()],
}

#[derive(Debug, Default)]
struct Count {
    all: AtomicU64,
    /// How many were not said since the last that was.
    unsaid: AtomicU64,
    /// When the last was said, in milliseconds after `since` and 1; 0: never.
    said: AtomicU64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self(Arc::new(Counts { since: Instant::now(), each: Default::default() }))
    }
}

impl Refusals {
    /// How often this was the reason.
    pub fn count(&self, refusal: Refusal) -> u64 {
        self.0.each[refusal as usize].all.load(Ordering::Relaxed)
    }

    /// How often each was, for metrics.
    pub fn counts(&self) -> [(Refusal, u64); Refusal::ALL.len()] {
        Refusal::ALL.map(|refusal| (refusal, self.count(refusal)))
    }

    /// Counts without a word.
    pub(super) fn add(&self, refusal: Refusal, more: u64) {
        self.0.each[refusal as usize].all.fetch_add(more, Ordering::Relaxed);
    }

    /// Counts, and says it: the first aloud and then one in a minute, so that a flood fills no disk.
    pub(crate) fn note(&self, refusal: Refusal, address: Option<SocketAddr>, detail: &dyn Display) {
        self.add(refusal, 1);
        let address = address.map(tracing::field::display);
        let reason = refusal.text();
        match self.due(refusal) {
            Some(unsaid) if !refusal.is_usual() => {
                warn!(address, %detail, unsaid, "a connection was closed: {reason}");
            }
            _ => debug!(address, %detail, "a connection was closed: {reason}"),
        }
    }

    /// How many were not said, if it is time to say one.
    fn due(&self, refusal: Refusal) -> Option<u64> {
        let count = &self.0.each[refusal as usize];
        let now = u64::try_from(self.0.since.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1;
        let said = count.said.load(Ordering::Relaxed);
        let again = u64::try_from(SAID_EVERY.as_millis()).unwrap_or(u64::MAX);
        let is_due = said == 0 || now.saturating_sub(said) >= again;
        // One of several at a time says it.
        if is_due && count.said.compare_exchange(said, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return Some(count.unsaid.swap(0, Ordering::Relaxed));
        }
        count.unsaid.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_has_its_own_place_and_word() {
        for (index, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, index);
        }
        let count = Refusal::ALL.len();
        assert_eq!(Refusal::ALL.map(Refusal::as_str).into_iter().collect::<BTreeSet<_>>().len(), count);
        assert_eq!(Refusal::ALL.map(Refusal::text).into_iter().collect::<BTreeSet<_>>().len(), count);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_and_said_once_in_a_minute() {
        let refusals = Refusals::default();
        assert_eq!(refusals.due(Refusal::Full), Some(0));
        for _ in 0..1000 {
            refusals.clone().note(Refusal::Full, None, &"");
        }
        assert_eq!(refusals.count(Refusal::Full), 1000);
        assert_eq!(refusals.due(Refusal::Idle), Some(0));
        tokio::time::advance(SAID_EVERY).await;
        assert_eq!(refusals.due(Refusal::Full), Some(1000));
        assert_eq!(refusals.due(Refusal::Full), None);
        assert_eq!(refusals.counts()[0], (Refusal::Full, 1000));
    }
}
