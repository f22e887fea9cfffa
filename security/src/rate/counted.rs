//! Whose calls are counted together.

use std::fmt::{self, Display};
use std::net::IpAddr;

use crate::host::host_of;
use crate::identity::Role;
use crate::peer::Caller;

/// The bucket of a call: calls of one bucket share a rate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CountedAs(Whose);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Whose {
    Member(Role, String),
    Host(IpAddr),
    Strangers,
}

impl CountedAs {
    pub(super) const STRANGERS: Self = Self(Whose::Strangers);

    /// A member of the cluster, by whatever it shows who it is.
    pub fn member(role: Role, name: &str) -> Self {
        Self(Whose::Member(role, name.to_owned()))
    }

    /// Whoever is on the other side of a connection: the member whom the certificate names, or else the host. None on a port
    /// without TLS for callers of this machine, who may do everything anyway.
    pub fn of(caller: &Caller, address: IpAddr) -> Option<Self> {
        match caller {
            Caller::Open if address.to_canonical().is_loopback() => None,
            Caller::Known(identity) => Some(Self::member(identity.role, &identity.name)),
            Caller::Open | Caller::Anonymous | Caller::Refused(_) => {
                Some(Self(Whose::Host(host_of(address))))
            }
        }
    }

    /// Whether the bucket is a stranger's address, which anybody can vary.
    pub(super) fn is_stranger(&self) -> bool {
        !matches!(self.0, Whose::Member(..))
    }
}

impl Display for CountedAs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Whose::Member(role, name) => write!(formatter, "{role} {name}"),
            Whose::Host(host) => host.fmt(formatter),
            Whose::Strangers => formatter.write_str("callers that nobody knows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Cluster, Identity, IdentityError};
    use crate::peer::Refused;

    #[test]
    fn members_are_told_apart_by_name_and_all_others_by_host() {
        let of = |caller: &Caller, address: &str| CountedAs::of(caller, address.parse().unwrap());
        let known = |role, name: &str, serial: &str| {
            Caller::Known(Identity {
                cluster: Cluster::random(),
                role,
                name: name.into(),
                serial: serial.into(),
            })
        };
        let ada = of(&known(Role::Submitter, "ada", "1"), "10.0.0.1");
        assert_eq!(ada, Some(CountedAs::member(Role::Submitter, "ada")));
        assert_eq!(ada, of(&known(Role::Submitter, "ada", "2"), "127.0.0.1"), "wherever she calls from");
        assert_ne!(ada, of(&known(Role::Submitter, "bob", "1"), "10.0.0.1"));
        assert_ne!(ada, of(&known(Role::Admin, "ada", "1"), "10.0.0.1"));
        assert_eq!(ada.unwrap().to_string(), "submitter ada");
        let refused = Caller::Refused(Refused::NoRole(IdentityError::Absent));
        let here = of(&Caller::Anonymous, "127.0.0.1");
        assert_eq!(here.as_ref().unwrap().to_string(), "127.0.0.1");
        assert_eq!(here, of(&refused, "::ffff:127.0.0.1"));
        assert_eq!(of(&Caller::Open, "2001:db8::1"), of(&Caller::Anonymous, "2001:db8::ffff"));
        assert_ne!(of(&Caller::Open, "10.0.0.1"), of(&Caller::Open, "10.0.0.2"));
        for here in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(of(&Caller::Open, here), None, "{here}");
        }
    }
}
