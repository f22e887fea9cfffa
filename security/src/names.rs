//! Names of servers within a cluster, so that certificates need no host names.
//!
//! They are in no DNS: a client checks them instead of the address that it dialled.

use uuid::Uuid;

use crate::identity::{Cluster, hyphenated};

/// What all of them end with. `internal` is reserved for private use and will never be in the DNS.
const SUFFIX: &str = ".ringtune.internal";

/// A name that only certificates of a cluster's own CA have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Internal {
    /// The coordinator.
    Coordinator(Cluster),
    /// A worker's ring port.
    Worker(Uuid, Cluster),
    /// The CA itself.
    Authority(Cluster),
}

impl Internal {
    /// The cluster that it belongs to.
    pub(crate) fn cluster(self) -> Cluster {
        match self {
            Self::Coordinator(cluster) | Self::Worker(_, cluster) | Self::Authority(cluster) => cluster,
        }
    }

    /// Reads one; None: a name of another sort.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_suffix(SUFFIX)?;
        let (holder, cluster) = rest.rsplit_once('.')?;
        let cluster = Cluster::from(hyphenated(cluster)?);
        match holder {
            "coordinator" => Some(Self::Coordinator(cluster)),
            "authority" => Some(Self::Authority(cluster)),
            _ => hyphenated(holder.strip_suffix(".worker")?).map(|id| Self::Worker(id, cluster)),
        }
    }
}

/// The coordinator's: `coordinator.CLUSTER.ringtune.internal`.
pub fn coordinator(cluster: Cluster) -> String {
    format!("coordinator.{cluster}{SUFFIX}")
}

/// That of a worker's ring port: `UUID.worker.CLUSTER.ringtune.internal`.
pub fn worker(id: Uuid, cluster: Cluster) -> String {
    format!("{}.worker.{cluster}{SUFFIX}", id.hyphenated())
}

/// That of the CA, by which a root says to which cluster it belongs: `authority.CLUSTER.ringtune.internal`.
pub(crate) fn authority(cluster: Cluster) -> String {
    format!("authority.{cluster}{SUFFIX}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_are_valid_in_dns() {
        let (cluster, id) = (Cluster::from(Uuid::from_u128(1)), Uuid::from_u128(2));
        for (name, internal) in [
            (coordinator(cluster), Internal::Coordinator(cluster)),
            (worker(id, cluster), Internal::Worker(id, cluster)),
            (authority(cluster), Internal::Authority(cluster)),
        ] {
            assert_eq!(Internal::parse(&name), Some(internal));
            assert_eq!(internal.cluster(), cluster);
            assert!(rustls::pki_types::DnsName::try_from(name.as_str()).is_ok(), "{name}");
        }
    }

    #[test]
    fn other_names_are_none_of_ours() {
        let cluster = Cluster::from(Uuid::from_u128(1));
        for name in [
            "localhost".to_owned(),
            format!("other.{cluster}.ringtune.internal"),
            format!("worker.{cluster}.ringtune.internal"),
            format!("a.coordinator.{cluster}.ringtune.internal"),
            format!("coordinator.{cluster}.ringtune.internal.example.org"),
            "coordinator.x.ringtune.internal".to_owned(),
            ".ringtune.internal".to_owned(),
        ] {
            assert_eq!(Internal::parse(&name), None, "{name}");
        }
    }
}
