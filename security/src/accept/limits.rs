//! How many connections, and how long.

use std::time::Duration;

/// The bounds of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open connections in all, those that are still opening included.
    pub connections: usize,
    /// Open connections of one address; of an IPv6 address: of its /64, which is one host's. On loopback everybody has
    /// one address, so there this should be as much as `connections`.
    pub per_address: usize,
    /// Connections that are opening: they have said nothing yet, or their handshake is under way.
    pub openings: usize,
    /// Those of one address, so that one host cannot take all of them.
    pub openings_per_address: usize,
    /// How long a connection may take to open.
    pub opening: Duration,
    /// How long an open connection may take until its first call.
    pub first_call: Duration,
    /// How long a connection may stand without calls after that.
    pub idle: Duration,
    /// How long the other side may take nothing of what is sent to it.
    pub unread: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            per_address: 256,
            openings: 512,
            openings_per_address: 128,
            opening: Duration::from_secs(10),
            first_call: Duration::from_secs(10),
            idle: Duration::from_secs(600),
            unread: Duration::from_secs(60),
        }
    }
}

impl Limits {
    /// Connections of a port of pages.
    pub const OF_PAGES: usize = 256;

    /// For a port of pages, which people, probes and Prometheus read: probes come from elsewhere than what floods the port,
    /// and those who scrape do so once in a minute at least, and may connect again.
    #[must_use]
    pub fn of_pages() -> Self {
        let idle = Duration::from_secs(75);
        Self {
            connections: Self::OF_PAGES,
            per_address: 64,
            openings_per_address: 64,
            idle,
            ..Self::default()
        }
    }

    /// For a port that only this machine reaches: all callers have one address.
    #[must_use]
    pub fn for_loopback(self) -> Self {
        Self { per_address: self.connections, openings_per_address: self.openings, ..self }
    }
}
