//! The ports: with TLS or without, and bounded.

use std::net::SocketAddr;
use std::time::Duration;

use ringtune_security::{Clients, Limits, Listener, ListenerError, Protection, Protocols, Refusals};
use tokio::net::TcpListener;

use super::authority::Pki;
use crate::settings::LimitSettings;

/// Connections that open at the same time, where strangers may be among them: a part of all, but at least so many.
const LEAST_OPENINGS: usize = 512;
/// Connections of the HTTP port: a page has one for its events, and browsers open up to six for pictures.
pub(crate) const PAGES: usize = 1024;
/// Those of one address, behind which may be a few people.
const PAGES_PER_ADDRESS: usize = 128;

/// What the gRPC port listens with.
///
/// # Errors
/// See [`ListenerError`].
pub fn grpc(
    tcp: TcpListener,
    pki: Option<&Pki>,
    settings: &LimitSettings,
    refusals: Refusals,
) -> Result<Listener, ListenerError> {
    let limits = limits(settings, tcp.local_addr()?);
    Listener::start(tcp, protection(pki, Protocols::Http2), limits, refusals)
}

/// What the HTTP port listens with.
///
/// # Errors
/// See [`ListenerError`].
pub fn http(
    tcp: TcpListener,
    pki: Option<&Pki>,
    settings: &LimitSettings,
    refusals: Refusals,
) -> Result<Listener, ListenerError> {
    let limits = http_limits(settings, tcp.local_addr()?);
    Listener::start(tcp, protection(pki, Protocols::Http1), limits, refusals)
}

fn protection(pki: Option<&Pki>, protocols: Protocols) -> Protection {
    match pki {
        None => Protection::Plain,
        // Who joins has no certificate yet, and who has a bearer token needs none.
        Some(pki) => Protection::Tls { trust: pki.trust().clone(), clients: Clients::Optional, protocols },
    }
}

fn http_limits(settings: &LimitSettings, listening: SocketAddr) -> Limits {
    let pages = Limits::of_pages();
    let few = LimitSettings {
        connections: PAGES,
        connections_per_address: settings.connections_per_address.min(PAGES_PER_ADDRESS),
        ..settings.clone()
    };
    Limits { idle: pages.idle, ..limits(&few, listening) }
}

fn limits(settings: &LimitSettings, listening: SocketAddr) -> Limits {
    let connections = settings.connections;
    let wait = Duration::from_secs_f64(settings.opening_seconds);
    let all = Limits {
        connections,
        per_address: settings.connections_per_address,
        openings: connections.min(LEAST_OPENINGS.max(connections / 4)),
        opening: wait,
        // A call whose client does nothing is ended before its connection is, and says why.
        unread: Duration::from_secs_f64(2.0 * settings.idle_seconds),
        first_call: wait,
        ..Limits::default()
    };
    if listening.ip().is_loopback() {
        return Limits { openings: connections, ..all }.for_loopback();
    }
    Limits { openings_per_address: all.openings_per_address.min(all.per_address), ..all }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_cannot_take_all_places_but_this_machine_can() {
        let settings = LimitSettings { connections: 4000, ..LimitSettings::default() };
        let beyond = limits(&settings, SocketAddr::from(([0, 0, 0, 0], 7070)));
        assert_eq!((beyond.connections, beyond.per_address), (4000, 256));
        assert_eq!((beyond.openings, beyond.openings_per_address), (1000, 128));
        let here = limits(&settings, SocketAddr::from(([127, 0, 0, 1], 7070)));
        assert_eq!((here.per_address, here.openings, here.openings_per_address), (4000, 4000, 4000));
        let http = http_limits(&settings, SocketAddr::from(([0, 0, 0, 0], 7071)));
        assert_eq!((http.connections, http.per_address, http.openings_per_address), (1024, 128, 128));
        let few = LimitSettings { connections: 10, connections_per_address: 3, ..settings };
        let few = limits(&few, SocketAddr::from(([10, 0, 0, 1], 7070)));
        assert_eq!((few.openings, few.openings_per_address), (10, 3));
    }
}
