//! The coordinator's address.

use std::{fmt, net::IpAddr};

use ringtune_security::{Connector, Server, Trust};

/// The coordinator's gRPC port where none is given.
const PORT: u16 = 7070;

/// The coordinator's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorAddress {
    /// Over TLS.
    pub secure: bool,
    /// A name or an address; an IPv6 address in brackets.
    pub host: String,
    /// Of gRPC.
    pub port: u16,
}

impl CoordinatorAddress {
    /// Reads `https://HOST:PORT`, `http://HOST:PORT` or `HOST:PORT`, each without its port too. None if malformed.
    ///
    /// Without a scheme it is `http` for this machine, and `https` for all others.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = match text.split_once("://") {
            Some(("https", rest)) => (Some(true), rest),
            Some(("http", rest)) => (Some(false), rest),
            Some(_) => return None,
            None => (None, text),
        };
        let (host, port) = authority(rest.strip_suffix('/').unwrap_or(rest), PORT)?;
        let secure = scheme.unwrap_or_else(|| !is_loopback(&host));
        Some(Self { secure, host, port })
    }

    /// `HOST:PORT`.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Whether it is this machine itself.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }
}

impl fmt::Display for CoordinatorAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(formatter, "{scheme}://{}", self.authority())
    }
}

/// Reads `HOST:PORT`, or `HOST` for the usual port. An IPv6 address keeps its brackets. None: it is neither.
pub(crate) fn authority(text: &str, usual_port: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(inside) => {
            let (address, after) = inside.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            let port = if after.is_empty() { None } else { Some(after.strip_prefix(':')?) };
            (format!("[{address}]"), port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        },
    };
    let plain = |symbol: char| symbol.is_ascii_alphanumeric() || ".-_[]:".contains(symbol);
    if host.is_empty() || !host.chars().all(plain) {
        return None;
    }
    let port = port.map_or(Some(usual_port), |port| port.parse().ok().filter(|port| *port > 0))?;
    Some((host, port))
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Makes connections to the coordinator. `trust`: whom a worker of a secured cluster believes.
pub(crate) fn connector(trust: Option<&Trust>) -> Connector {
    trust.map_or_else(Connector::plain, |trust| Connector::to(trust.clone(), Server::Coordinator))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed() {
        for (given, expected) in [
            ("http://127.0.0.1:7070", "http://127.0.0.1:7070"),
            ("http://h:1/", "http://h:1"),
            ("https://h", "https://h:7070"),
            ("https://127.0.0.1:9", "https://127.0.0.1:9"),
            ("10.0.0.1", "https://10.0.0.1:7070"),
            ("node-1.lan:71", "https://node-1.lan:71"),
            ("localhost", "http://localhost:7070"),
            ("127.0.0.5:1", "http://127.0.0.5:1"),
            ("[::1]", "http://[::1]:7070"),
            ("[fd00::1]:5", "https://[fd00::1]:5"),
        ] {
            assert_eq!(CoordinatorAddress::parse(given).unwrap().to_string(), expected, "{given}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for given in [
            "",
            "http://",
            "ftp://h:1",
            "http://h:",
            "http://h:0",
            "http://h:70700",
            "http://h:1/path",
            "h/path",
            "u@h:1",
            "a b",
            "::1",
            "[::1",
            "[x]:1",
            "[::1]1",
            "http://h:1?x",
            "https://https://h",
        ] {
            assert_eq!(CoordinatorAddress::parse(given), None, "{given}");
        }
    }

    #[test]
    fn this_machine_is_known() {
        let is = |text: &str| CoordinatorAddress::parse(text).unwrap().is_loopback();
        assert!(is("http://localhost:1") && is("127.1.2.3") && is("https://[::1]:1"));
        assert!(!is("10.0.0.1") && !is("localhost.example"));
    }
}
