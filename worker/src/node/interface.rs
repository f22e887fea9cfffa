//! The interface by which an address is reached, or that has it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
};

/// Any: nothing is sent there.
const SOME_PORT: u16 = 9;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// As the system calls it.
    pub(crate) name: String,
    /// Bytes of its largest packets.
    pub(crate) mtu: Option<u32>,
    /// Megabits a second. Virtual ones have none.
    pub(crate) speed: Option<u32>,
}

impl Interface {
    /// The one that has this address. `root` is where /sys is.
    pub(crate) fn with(root: &Path, address: IpAddr) -> Option<Self> {
        let all = if_addrs::get_if_addrs().ok()?;
        let name = all.into_iter().find(|interface| interface.ip() == address)?.name;
        let read = |file: &str| {
            let path = root.join("sys/class/net").join(&name).join(file);
            fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        Some(Self { mtu: read("mtu"), speed: read("speed"), name })
    }

    /// The one by which this address is reached, as the system's routes have it. Nothing is sent.
    pub(crate) fn towards(root: &Path, address: IpAddr) -> Option<Self> {
        let any: IpAddr =
            if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
        socket.connect(SocketAddr::new(address, SOME_PORT)).ok()?;
        Self::with(root, socket.local_addr().ok()?.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_its_address_and_by_where_it_leads() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/class/net/lo")).unwrap();
        fs::write(root.path().join("sys/class/net/lo/mtu"), "65536\n").unwrap();
        let here = Interface { name: "lo".to_owned(), mtu: Some(65_536), speed: None };
        assert_eq!(Interface::with(root.path(), Ipv4Addr::LOCALHOST.into()), Some(here.clone()));
        assert_eq!(Interface::towards(root.path(), Ipv4Addr::LOCALHOST.into()), Some(here));
        assert_eq!(Interface::with(root.path(), [192, 0, 2, 1].into()), None);
    }
}
