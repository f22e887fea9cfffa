//! The address that this worker's ring neighbours dial.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
};

use tokio::task::spawn_blocking;

use crate::settings::Settings;

/// Why no address could be found.
#[derive(Debug, thiserror::Error)]
pub enum AdvertiseError {
    /// Not HOST or HOST:PORT.
    #[error("ring.advertise_address: {given:?} is not HOST or HOST:PORT")]
    Malformed {
        /// As given.
        given: String,
    },
    /// This machine has no such interface, or it has no address.
    #[error("ring.interface: {given:?} has no address; interfaces with one: {known}")]
    UnknownInterface {
        /// As given.
        given: String,
        /// The others, with their addresses.
        known: String,
    },
    /// The system did not list its interfaces.
    #[error("cannot list the network interfaces: {0}")]
    Interfaces(std::io::Error),
}

/// What this worker advertises. It is found anew each time: a worker may be started before the coordinator's name leads
/// anywhere, and before its machine has a route.
#[derive(Clone, Debug)]
pub struct Advertised {
    settings: Arc<Settings>,
    listening: SocketAddr,
}

impl Advertised {
    /// Of a worker whose gRPC port is bound at `listening`.
    pub fn new(settings: &Settings, listening: SocketAddr) -> Self {
        Self { settings: Arc::new(settings.clone()), listening }
    }

    /// `HOST:PORT`, as [`advertised_address`] decides now.
    ///
    /// # Errors
    /// As there.
    pub async fn address(&self) -> Result<String, AdvertiseError> {
        let Self { settings, listening } = self.clone();
        let found = spawn_blocking(move || advertised_address(&settings, listening)).await;
        found.unwrap_or_else(|error| Err(AdvertiseError::Interfaces(error.into())))
    }
}

/// Decides what to advertise, in this order: `ring.advertise_address`; the address of `ring.interface`;
/// the address this worker listens on, when it is one and not all; the local address of the route to the
/// coordinator; loopback. `listening` is where the gRPC port is bound.
///
/// Blocks on name resolution: call it off the runtime's threads.
pub fn advertised_address(settings: &Settings, listening: SocketAddr) -> Result<String, AdvertiseError> {
    let port = listening.port();
    if !settings.ring.advertise_address.is_empty() {
        return with_port(&settings.ring.advertise_address, port);
    }
    if !settings.ring.interface.is_empty() {
        return Ok(SocketAddr::new(interface_address(&settings.ring.interface)?, port).to_string());
    }
    if !listening.ip().is_unspecified() {
        return Ok(listening.to_string());
    }
    let route = settings.coordinator_address().ok().and_then(|address| route_to(&address.authority()));
    let local = route.unwrap_or(IpAddr::from([127, 0, 0, 1]));
    Ok(SocketAddr::new(local, port).to_string())
}

fn with_port(given: &str, port: u16) -> Result<String, AdvertiseError> {
    let malformed = || AdvertiseError::Malformed { given: given.to_owned() };
    if let Ok(ip) = given.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port).to_string());
    }
    let bad_host = |host: &str| host.is_empty() || host.contains(['/', ' ', '@']);
    match given.rsplit_once(':') {
        None if !bad_host(given) => Ok(format!("{given}:{port}")),
        Some((host, port)) if !bad_host(host) && port.parse::<u16>().is_ok_and(|p| p > 0) => {
            Ok(given.to_owned())
        }
        _ => Err(malformed()),
    }
}

fn interface_address(name: &str) -> Result<IpAddr, AdvertiseError> {
    let interfaces = if_addrs::get_if_addrs().map_err(AdvertiseError::Interfaces)?;
    primary(interfaces.iter().filter(|entry| entry.name == name).map(|entry| entry.ip())).ok_or_else(|| {
        AdvertiseError::UnknownInterface {
            given: name.to_owned(),
            known: interfaces.iter().map(|e| format!("{} {}", e.name, e.ip())).collect::<Vec<_>>().join(", "),
        }
    })
}

/// The address to dial of an interface's `addresses`, which the system lists oldest first: the first IPv4
/// one, or the first IPv6 one that means the same on every machine, or whatever there is.
fn primary(addresses: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
    addresses.min_by_key(|address| match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(address) if !address.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    })
}

/// Connecting a datagram socket sends nothing: it asks the system for the route.
fn route_to(authority: &str) -> Option<IpAddr> {
    let target = std::net::ToSocketAddrs::to_socket_addrs(authority).ok()?.next()?;
    let any: IpAddr = if target.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advertise(change: impl FnOnce(&mut Settings), listening: &str) -> Result<String, AdvertiseError> {
        let mut settings = Settings::default();
        change(&mut settings);
        advertised_address(&settings, listening.parse().unwrap())
    }

    #[test]
    fn an_explicit_address_wins_and_takes_our_port_when_it_has_none() {
        let explicit = |text: &str| advertise(|s| s.ring.advertise_address = text.to_owned(), "0.0.0.0:7080");
        assert_eq!(explicit("10.0.0.7").unwrap(), "10.0.0.7:7080");
        assert_eq!(explicit("node-3").unwrap(), "node-3:7080");
        assert_eq!(explicit("node-3:9").unwrap(), "node-3:9");
        assert_eq!(explicit("fd00::7").unwrap(), "[fd00::7]:7080");
        for bad in ["node:port", "node:0", ":7", "http://node", "a b"] {
            assert!(matches!(explicit(bad), Err(AdvertiseError::Malformed { .. })), "{bad}");
        }
    }

    #[test]
    fn without_one_the_listening_address_or_the_route_decides() {
        assert_eq!(advertise(|_| (), "127.0.0.1:81").unwrap(), "127.0.0.1:81");
        assert_eq!(advertise(|_| (), "0.0.0.0:82").unwrap(), "127.0.0.1:82");
        let interface = |name: &str| advertise(|s| s.ring.interface = name.to_owned(), "0.0.0.0:83");
        assert_eq!(interface("lo").unwrap(), "127.0.0.1:83");
        assert!(matches!(interface("nothing9"), Err(AdvertiseError::UnknownInterface { .. })));
    }

    #[test]
    fn an_interface_with_several_addresses_is_dialled_at_its_oldest_ipv4_one() {
        let primary = |addresses: &[&str]| {
            primary(addresses.iter().map(|text| text.parse().unwrap())).map(|address| address.to_string())
        };
        assert_eq!(primary(&["127.0.0.1", "10.0.0.1", "::1"]).as_deref(), Some("127.0.0.1"));
        assert_eq!(primary(&["fe80::1", "fd00::2", "fd00::1", "192.0.2.2"]).as_deref(), Some("192.0.2.2"));
        assert_eq!(primary(&["fe80::1", "fd00::2", "fd00::1"]).as_deref(), Some("fd00::2"));
        assert_eq!(primary(&["fe80::1"]).as_deref(), Some("fe80::1"));
        assert_eq!(primary(&[]), None);
    }
}
