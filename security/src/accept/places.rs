//! The places that connections take, and a handle on those that are open.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::limits::Limits;
use super::refusals::Refusal;
use crate::host::host_of;
use crate::identity::Identity;

/// All connections of a port; clones are one handle.
#[derive(Debug, Clone)]
pub struct Connections(Arc<Places>);

#[derive(Debug)]
struct Places {
    limits: Limits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    count: Count,
    addresses: HashMap<IpAddr, Count>,
    next: u64,
    open: BTreeMap<u64, Open>,
}

/// Connections, and how many of them are still opening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    connections: usize,
    openings: usize,
}

#[derive(Debug)]
struct Open {
    identity: Option<Identity>,
    close: CancellationToken,
}

/// Whether there is a place for one more, with so many taken in all and of its address.
fn refused(limits: &Limits, all: Count, of_address: Count) -> Option<Refusal> {
    if all.connections >= limits.connections {
        Some(Refusal::Full)
    } else if of_address.connections >= limits.per_address {
        Some(Refusal::FullForAddress)
    } else if all.openings >= limits.openings {
        Some(Refusal::Openings)
    } else if of_address.openings >= limits.openings_per_address {
        Some(Refusal::OpeningsForAddress)
    } else {
        None
    }
}

impl Connections {
    pub(super) fn new(limits: Limits) -> Self {
        Self(Arc::new(Places { limits, taken: Mutex::default() }))
    }

    /// Held for a few instructions, never over an await.
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection that opens.
    pub(super) fn admit(&self, address: IpAddr) -> Result<Place, Refusal> {
        let host = host_of(address);
        let mut taken = self.taken();
        let of_address = taken.addresses.get(&host).copied().unwrap_or_default();
        if let Some(refusal) = refused(&self.0.limits, taken.count, of_address) {
            return Err(refusal);
        }
        let number = taken.next;
        taken.next += 1;
        taken.count.connections += 1;
        taken.count.openings += 1;
        let more = Count { connections: of_address.connections + 1, openings: of_address.openings + 1 };
        taken.addresses.insert(host, more);
        drop(taken);
        Ok(Place { connections: self.clone(), host, number, opening: true })
    }

    /// How many connections there are, those that are opening included.
    pub fn open(&self) -> usize {
        self.taken().count.connections
    }

    /// How many are opening.
    pub fn opening(&self) -> usize {
        self.taken().count.openings
    }

    /// Closes the connections of those callers for which `is_meant`, and says how many they were.
    pub(super) fn close_where(&self, is_meant: impl Fn(&Identity) -> bool) -> usize {
        let taken = self.taken();
        let open = taken.open.values().filter(|open| open.identity.as_ref().is_some_and(&is_meant));
        let meant: Vec<CancellationToken> = open.map(|open| open.close.clone()).collect();
        drop(taken);
        let still_open = meant.iter().filter(|close| !close.is_cancelled()).count();
        // Outside the lock: this wakes whoever serves them.
        meant.iter().for_each(CancellationToken::cancel);
        still_open
    }
}

/// One connection's place, released on drop.
#[derive(Debug)]
pub(super) struct Place {
    connections: Connections,
    host: IpAddr,
    number: u64,
    opening: bool,
}

impl Place {
    /// Notes that the connection is open. It is closed when the returned token is cancelled.
    pub(super) fn opened(&mut self, identity: Option<Identity>) -> CancellationToken {
        let close = CancellationToken::new();
        let mut taken = self.connections.taken();
        if std::mem::take(&mut self.opening) {
            taken.release(self.host, Count { connections: 0, openings: 1 });
        }
        taken.open.insert(self.number, Open { identity, close: close.clone() });
        close
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.connections.taken();
        taken.release(self.host, Count { connections: 1, openings: usize::from(self.opening) });
        taken.open.remove(&self.number);
    }
}

impl Taken {
    fn release(&mut self, host: IpAddr, fewer: Count) {
        let less = |count: &mut Count| {
            count.connections = count.connections.saturating_sub(fewer.connections);
            count.openings = count.openings.saturating_sub(fewer.openings);
            *count
        };
        less(&mut self.count);
        // Addresses without connections are forgotten, so that memory does not grow with all that ever came.
        if self.addresses.get_mut(&host).map(less) == Some(Count::default()) {
            self.addresses.remove(&host);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::identity::{Cluster, Role};

    const LIMITS: fn() -> Limits = || Limits {
        connections: 4,
        per_address: 3,
        openings: 3,
        openings_per_address: 2,
        ..Limits::default()
    };

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[test]
    fn each_bound_has_its_own_reason() {
        let count = |connections, openings| Count { connections, openings };
        for (all, of_address, expected) in [
            (count(3, 2), count(2, 1), None),
            (count(4, 0), count(0, 0), Some(Refusal::Full)),
            (count(3, 0), count(3, 0), Some(Refusal::FullForAddress)),
            (count(3, 3), count(0, 0), Some(Refusal::Openings)),
            (count(2, 2), count(2, 2), Some(Refusal::OpeningsForAddress)),
        ] {
            assert_eq!(refused(&LIMITS(), all, of_address), expected, "{all:?} {of_address:?}");
        }
    }

    #[test]
    fn places_are_free_again_and_nothing_is_left_of_them() {
        let connections = Connections::new(LIMITS());
        let mut one = connections.admit(address(1)).unwrap();
        let two = connections.admit(address(1)).unwrap();
        assert_eq!(connections.admit(address(1)).unwrap_err(), Refusal::OpeningsForAddress);
        let _close = one.opened(None);
        let three = connections.admit(address(1)).unwrap();
        assert_eq!(connections.admit(address(1)).unwrap_err(), Refusal::FullForAddress);
        assert_eq!((connections.open(), connections.opening()), (3, 2));
        drop((one, two, three));
        assert_eq!((connections.open(), connections.opening()), (0, 0));
        let taken = connections.taken();
        assert!(taken.addresses.is_empty() && taken.open.is_empty());
    }

    #[test]
    fn those_that_are_meant_are_closed_and_no_others() {
        let connections = Connections::new(Limits::default());
        let anna = |serial: &str| Identity {
            cluster: Cluster::random(),
            role: Role::Submitter,
            name: "anna".into(),
            serial: serial.into(),
        };
        let bob = Identity { name: "bob".into(), ..anna("3") };
        let mut places: Vec<Place> = (0..4).map(|_| connections.admit(address(1)).unwrap()).collect();
        let identities = [Some(anna("1")), Some(anna("2")), Some(bob), None];
        let closes: Vec<CancellationToken> =
            places.iter_mut().zip(identities).map(|(place, identity)| place.opened(identity)).collect();
        let closed = || closes.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>();
        assert_eq!(connections.close_where(|caller| caller.serial == "1"), 1);
        assert_eq!(closed(), [true, false, false, false]);
        assert_eq!(connections.close_where(|caller| caller.name == "anna"), 1);
        assert_eq!(closed(), [true, true, false, false]);
        // That of nobody stays.
        assert_eq!(connections.close_where(|_| true), 1);
        assert_eq!(closed(), [true, true, true, false]);
        drop(places);
        assert_eq!(connections.close_where(|_| true), 0);
    }
}
