//! Host names for the coordinator's own certificate.

use std::net::{IpAddr, SocketAddr};

/// Names from the settings, those of the addresses that it listens on, and the host's own. `host`: as the operating
/// system has it, which need not be a name for a certificate.
pub(crate) fn names(settings: &[String], listening: &[SocketAddr], host: Option<&str>) -> Vec<String> {
    let addresses = listening.iter().map(|address| address.ip()).filter(|address| !address.is_unspecified());
    let addresses = addresses.map(|address| address.to_canonical().to_string());
    let host = host.filter(|host| is_host(host)).map(str::to_owned);
    let mut all: Vec<String> = Vec::new();
    for name in settings.iter().cloned().chain(addresses).chain(host) {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// This host's own name.
pub(crate) fn of_this_host() -> Option<String> {
    rustix::system::uname().nodename().to_str().ok().map(str::to_owned)
}

/// Whether it is a host name or an IP address.
pub(crate) fn is_name(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok() || is_host(name)
}

fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_a_name_is_one() {
        let listening = ["0.0.0.0:7070", "10.0.0.7:7071", "[::ffff:10.0.0.7]:1"];
        let listening = listening.map(|address| address.parse().unwrap());
        let given = ["ringtune.example".to_owned(), "node-1".to_owned()];
        assert_eq!(names(&given, &listening, Some("node-1")), ["ringtune.example", "node-1", "10.0.0.7"]);
        assert_eq!(names(&[], &listening[..1], Some("node_1")), [""; 0]);
        assert_eq!(names(&[], &[], Some("a.b")), ["a.b"]);
        for bad in ["", "-a", "a..b", "a b", &"a".repeat(64)] {
            assert!(!is_host(bad), "{bad}");
        }
    }
}
