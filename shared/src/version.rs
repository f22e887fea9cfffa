//! The version of this build, and how two programs of different versions agree on what they say to each other.
//!
//! Each side names a range of protocol versions and the features that it has beyond them. They speak the newest
//! protocol that both know and use the features that both have; without a protocol in common, neither begins.
//! A protocol's number grows when a message changes its meaning or a new one must be understood; what may be
//! skipped needs none, and what only some builds can do is a feature.
//!
//! A worker's hello names its protocols and features, the welcome those of both sides, and a ring speaks the newest
//! protocol that all its members know. A message, or a value of an enum, that one side does not know is skipped and
//! counted; it ends no session.

use std::fmt;

/// This build's version, "major.minor.patch".
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The protocols of WorkerService that this build speaks, as worker and as coordinator.
pub const WORKER_PROTOCOLS: ProtocolRange = ProtocolRange { min: 2, max: 3 };

/// A ring whose members all have it goes on without a member that it loses, and takes others in while it runs.
pub const RE_FORM: &str = "re-form";

/// A worker that has it can compute the steps of a job again, up to any of them, without making files of them.
pub const VERIFY: &str = "verify";

/// Each rank of a worker that has it says what its steps take, to a coordinator that has it.
pub const TIMINGS: &str = "timings";

/// A worker that has it says which other workers it reaches, when it is asked.
pub const LINKS: &str = "links";

/// A worker that has it says over its session what it counts, to a coordinator that has it.
pub const METRICS: &str = "metrics";

/// The ranks of a worker that has it carry out what a user orders of a job while it learns.
pub const ORDERS: &str = "orders";

/// Features of this build, by name: not all builds of one protocol have them.
pub const WORKER_FEATURES: [&str; 6] = [RE_FORM, VERIFY, TIMINGS, LINKS, METRICS, ORDERS];

/// The protocols of RingService that this build speaks. A ring speaks the newest one that all its members do: each
/// protocol of WorkerService has one of RingService, of the same number.
pub const RING_PROTOCOLS: ProtocolRange = WORKER_PROTOCOLS;

/// The first protocol of RingService in which ranks tell each other what they know of the ring's future: before the first
/// step where each of them stands, and with each step which epoch is wanted. A ring of an older one cannot go on in a
/// new epoch.
pub const REFORMING_RING_PROTOCOL: u32 = 3;

/// The first protocol of RingService in which the segments of large buffers are larger than others.
pub const GROWING_RING_PROTOCOL: u32 = 3;

/// The first protocol of RingService in which pictures are encoded when a step first shows them. In an older one all are
/// before the first step.
pub const ON_DEMAND_RING_PROTOCOL: u32 = 3;

/// The protocols of WorkerService, by the first release that spoke them.
const FIRST_RELEASES: [(u32, &str); 3] = [(1, "0.1.0"), (2, "0.2.0"), (3, "0.3.0")];

/// Characters of the other side's version in a text.
const LONGEST_VERSION: usize = 100;

/// Versions of a protocol, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolRange {
    /// The oldest one.
    pub min: u32,
    /// The newest one.
    pub max: u32,
}

impl ProtocolRange {
    /// The newest version that both ranges have.
    pub fn newest_common(self, other: Self) -> Option<u32> {
        let newest = self.max.min(other.max);
        (newest >= self.min.max(other.min)).then_some(newest)
    }

    /// Whether `version` is among them.
    pub fn contains(self, version: u32) -> bool {
        (self.min..=self.max).contains(&version)
    }
}

impl fmt::Display for ProtocolRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.min, self.max) {
            (0, 0) => write!(formatter, "no protocol that has a number"),
            (min, max) if min == max => write!(formatter, "protocol {min}"),
            (min, max) => write!(formatter, "protocols {min} to {max}"),
        }
    }
}

/// Protocols and features of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Of the build, for texts only: it decides nothing.
    pub version: String,
    /// The protocols that it knows.
    pub protocols: ProtocolRange,
    /// Its features.
    pub features: Vec<String>,
}

/// The agreement of two sides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// The newest protocol that both know.
    pub protocol: u32,
    /// Features of both, sorted, each once.
    pub features: Vec<String>,
}

impl Dialect {
    /// This build's.
    pub fn ours() -> Self {
        Self {
            version: VERSION.to_owned(),
            protocols: WORKER_PROTOCOLS,
            features: WORKER_FEATURES.map(str::to_owned).to_vec(),
        }
    }

    /// Negotiates protocol and features of a worker and its coordinator; decided by the coordinator.
    ///
    /// # Errors
    /// [`Misfit`]: they have no protocol in common.
    pub fn agree(worker: &Self, coordinator: &Self) -> Result<Agreement, Misfit> {
        let Some(protocol) = worker.protocols.newest_common(coordinator.protocols) else {
            return Err(Misfit { worker: worker.side(), coordinator: coordinator.side() });
        };
        let mut features = worker.features.clone();
        features.retain(|feature| coordinator.features.contains(feature));
        features.sort();
        features.dedup();
        Ok(Agreement { protocol, features })
    }

    /// Its part of a [`Misfit`].
    pub fn side(&self) -> Side {
        Side { version: self.version.clone(), protocols: self.protocols }
    }
}

/// A worker and a coordinator that have no protocol in common.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker is {worker}, the coordinator is {coordinator}: {}", self.advice())]
pub struct Misfit {
    /// The worker.
    pub worker: Side,
    /// The coordinator.
    pub coordinator: Side,
}

/// One side of a misfit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Its own version text; may be empty.
    pub version: String,
    /// The protocols that it knows.
    pub protocols: ProtocolRange,
}

impl Side {
    fn release(&self) -> String {
        match self.version.as_str() {
            "" => "Ringtune of an unknown version".to_owned(),
            version => format!("Ringtune {}", version.chars().take(LONGEST_VERSION).collect::<String>()),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} and speaks {}", self.release(), self.protocols)
    }
}

impl Misfit {
    /// Which versions fit, and what to install where: the older side has to be upgraded.
    fn advice(&self) -> String {
        let (older, older_name, newer, newer_name) =
            if self.worker.protocols.max < self.coordinator.protocols.max {
                (&self.worker, "worker", &self.coordinator, "coordinator")
            } else {
                (&self.coordinator, "coordinator", &self.worker, "worker")
            };
        let fits = match first_release(newer.protocols.min) {
            Some(first) => format!("{older_name}s of Ringtune {first} and newer fit this {newer_name}"),
            None => format!("a {older_name} of the {newer_name}'s own version fits"),
        };
        let instead = match first_release(older.protocols.max) {
            Some(first) => format!(" (or Ringtune {first} on the {newer_name})"),
            None => String::new(),
        };
        format!("{fits}; install {} on the {older_name}{instead}", newer.release())
    }
}

fn first_release(protocol: u32) -> Option<&'static str> {
    FIRST_RELEASES.iter().find(|(spoken, _)| *spoken == protocol).map(|(_, release)| *release)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(version: &str, (min, max): (u32, u32), features: &[&str]) -> Dialect {
        Dialect {
            version: version.to_owned(),
            protocols: ProtocolRange { min, max },
            features: features.iter().map(|feature| (*feature).to_owned()).collect(),
        }
    }

    #[test]
    fn the_newest_common_protocol_and_all_common_features_are_chosen() {
        let ours = dialect("0.4.0", (2, 4), &["c", "a", "b"]);
        for (theirs, expected) in [
            ((2, 2), Some(2)),
            ((1, 3), Some(3)),
            ((4, 9), Some(4)),
            ((5, 9), None),
            ((1, 1), None),
            ((0, 0), None),
        ] {
            let worker = dialect("x", theirs, &["b", "d", "a", "a"]);
            let agreed = Dialect::agree(&worker, &ours).ok();
            assert_eq!(agreed.as_ref().map(|agreed| agreed.protocol), expected, "{theirs:?}");
            // The result is symmetric.
            let other_way = Dialect::agree(&ours, &worker).ok();
            assert_eq!(agreed, other_way);
            if let Some(agreed) = agreed {
                assert_eq!(agreed.features, ["a", "b"]);
            }
        }
    }

    #[test]
    fn a_version_number_decides_nothing() {
        let worker = dialect("97.1.0", (1, 3), &[]);
        assert!(Dialect::agree(&worker, &dialect("0.2.0", (2, 2), &[])).is_ok());
    }

    #[test]
    fn a_misfit_says_which_versions_fit_and_what_to_install() {
        let text = |worker: &Dialect, coordinator: &Dialect| {
            Dialect::agree(worker, coordinator).expect_err("they do not fit").to_string()
        };
        let ours = dialect("0.2.0", (2, 2), &[]);
        assert_eq!(
            text(&dialect("0.1.0", (1, 1), &[]), &ours),
            "the worker is Ringtune 0.1.0 and speaks protocol 1, the coordinator is Ringtune 0.2.0 and speaks \
             protocol 2: workers of Ringtune 0.2.0 and newer fit this coordinator; install Ringtune 0.2.0 on the \
             worker (or Ringtune 0.1.0 on the coordinator)"
        );
        assert_eq!(
            text(&dialect("0.9.0", (4, 6), &[]), &ours),
            "the worker is Ringtune 0.9.0 and speaks protocols 4 to 6, the coordinator is Ringtune 0.2.0 and speaks \
             protocol 2: a coordinator of the worker's own version fits; install Ringtune 0.9.0 on the coordinator \
             (or Ringtune 0.2.0 on the worker)"
        );
        let nameless = text(&dialect("", (0, 0), &[]), &ours);
        assert!(
            nameless.starts_with(
                "the worker is Ringtune of an unknown version and speaks no protocol that has a number"
            ),
            "{nameless}"
        );
        assert!(nameless.ends_with("install Ringtune 0.2.0 on the worker"), "{nameless}");
    }

    #[test]
    fn this_build_is_in_the_list_of_releases() {
        let numbers: Vec<_> = VERSION.split('.').map(str::parse::<u64>).collect();
        assert!(numbers.len() == 3 && numbers.iter().all(Result::is_ok), "{VERSION}");
        assert!(FIRST_RELEASES.is_sorted_by_key(|(protocol, _)| *protocol));
    }
}
