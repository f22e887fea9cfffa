//! Whom an address stands for.

use std::net::{IpAddr, Ipv6Addr};

/// The host of an address: an IPv4 address within IPv6 is one host, and so is an IPv6 network of 64 bits, of which a host
/// has all addresses.
pub fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_address_however_it_writes_it() {
        let of = |text: &str| host_of(text.parse().unwrap()).to_string();
        assert_eq!((of("10.0.0.1"), of("::ffff:10.0.0.1")), ("10.0.0.1".into(), "10.0.0.1".into()));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:9::7"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!((of("::1"), of("127.0.0.1")), ("::1".into(), "127.0.0.1".into()));
    }
}
