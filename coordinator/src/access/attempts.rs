//! How many wrong tokens came from where.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use ringtune_security::host_of;
use tokio::time::Instant;

/// Wrong tokens from one address in [`WINDOW`]; then no more are looked at.
const MOST: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are remembered. The one that began first is forgotten for another.
const ADDRESSES: usize = 4096;

/// Wrong tokens of the last minute, by host.
#[derive(Debug, Default)]
pub(super) struct Attempts(HashMap<IpAddr, Wrong>);

#[derive(Debug, Clone, Copy)]
struct Wrong {
    since: Instant,
    count: u32,
}

impl Wrong {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= WINDOW
    }
}

impl Attempts {
    /// How long tokens from this address are not looked at.
    pub(super) fn blocked(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let wrong = self.0.get(&host_of(address))?;
        (wrong.count >= MOST && !wrong.is_over(now)).then(|| WINDOW - now.duration_since(wrong.since))
    }

    /// A wrong token came.
    pub(super) fn wrong(&mut self, address: IpAddr, now: Instant) {
        let host = host_of(address);
        if self.0.len() >= ADDRESSES && !self.0.contains_key(&host) {
            self.0.retain(|_, wrong| !wrong.is_over(now));
            if self.0.len() >= ADDRESSES {
                let first = self.0.iter().min_by_key(|(_, wrong)| wrong.since).map(|(address, _)| *address);
                first.map(|first| self.0.remove(&first));
            }
        }
        let wrong = self.0.entry(host).or_insert(Wrong { since: now, count: 0 });
        if wrong.is_over(now) {
            *wrong = Wrong { since: now, count: 0 };
        }
        wrong.count = wrong.count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn an_address_has_twenty_tries_a_minute() {
        let (start, mut attempts) = (Instant::now(), Attempts::default());
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        for _ in 0..MOST {
            assert_eq!(attempts.blocked(address, start), None);
            attempts.wrong(address, start);
        }
        assert_eq!(attempts.blocked(address, start + Duration::from_secs(20)), Some(Duration::from_secs(40)));
        assert!(attempts.blocked("::ffff:10.0.0.1".parse().unwrap(), start).is_some(), "the same address");
        assert_eq!(attempts.blocked("10.0.0.2".parse().unwrap(), start), None);
        assert_eq!(attempts.blocked(address, start + WINDOW), None);
        attempts.wrong(address, start + WINDOW);
        assert_eq!(attempts.blocked(address, start + WINDOW), None, "it is counted anew");
    }

    #[test]
    fn a_network_of_ipv6_is_one_and_memory_is_bounded() {
        let (start, mut attempts) = (Instant::now(), Attempts::default());
        for host in 0..u128::from(MOST) {
            attempts.wrong(Ipv6Addr::from((0x2001_0db8 << 96) + host).into(), start);
        }
        let another: IpAddr = "2001:db8::ffff".parse().unwrap();
        assert!(attempts.blocked(another, start).is_some());
        for number in 0..ADDRESSES as u32 {
            attempts.wrong(std::net::Ipv4Addr::from(number).into(), start + Duration::from_millis(1));
        }
        assert_eq!(attempts.0.len(), ADDRESSES);
        assert_eq!(attempts.blocked(another, start), None, "the first was forgotten");
        attempts.wrong(another, start + 2 * WINDOW);
        assert_eq!(attempts.0.len(), 1, "what is over goes first");
    }
}
