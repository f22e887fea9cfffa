//! Whose fault it is that a rank failed, and what follows from that: one table.
//!
//! | whose fault  | the job, while it prepares          | the worker that it failed on                        | its owner |
//! |--------------|-------------------------------------|-----------------------------------------------------|-----------|
//! | the job's    | fails                               | is as good as before                                | lets others go first |
//! | not said     | fails                               | is as good as before                                | lets others go first |
//! | the node's   | gets another ring, a few times      | rests for the owner; for all if it was several owners' jobs | lets others go first |
//! | the machine's | is tried on other machines, each once | is as good as before                              | lets others go first |
//! | its settings' | is tried on other workers, each once | is as good as before                               | lets others go first |
//! | the checkpoint's | goes on from an older one       | is as good as before; where there is none, rests for the owner | – |
//! | the coordinator's | gets another ring, a few times | rests for the owner                                 | –         |
//! | a link's     | gets another ring, a few times      | rests for the owner                                 | –         |
//! | nobody's     | gets another ring, a few times      | rests for the owner                                 | –         |
//!
//! What a job that runs loses by it is decided by [`super::loss`]. Which error of a worker is whose fault, the worker says
//! (`worker/src/fault.rs`).

/// Whose fault it is that a rank failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// The worker does not say.
    #[default]
    Unknown,
    /// The job's: it would fail anywhere.
    Job,
    /// The worker's: its disk, its memory, its engine. The job may succeed on another one.
    Node,
    /// The whole machine's: it does not have or reach what the job names. Another machine may.
    Machine,
    /// The coordinator's: it did not do what it is there for.
    Coordinator,
    /// The connection's between ranks.
    Link,
    /// Nobody's: somebody was asked to end.
    Nobody,
    /// The checkpoint's that the coordinator chose: it is gone or damaged, and an older one will do.
    Checkpoint,
    /// The job asks for what the worker's settings keep from jobs; another worker's may not.
    Access,
}

/// What becomes of a job that prepares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cure {
    /// It fails.
    None,
    /// Another ring, a few times.
    AnotherRing,
    /// A ring of workers that did not refuse it yet.
    OtherWorkers,
    /// A ring on machines where it was not yet.
    OtherMachines,
    /// An older checkpoint.
    OlderCheckpoint,
}

/// Whose jobs the worker gets no ranks of for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// For nobody.
    None,
    /// For the job's owner.
    ForOwner,
    /// For the job's owner; for everybody where jobs of several owners failed one after the other.
    ForOwners,
}

/// What follows from a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Follows {
    pub(super) cure: Cure,
    pub(super) rest: Rest,
    /// The owner's other jobs let those of others go first for a while.
    pub(super) others_first: bool,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Unknown,
        Self::Job,
        Self::Node,
        Self::Machine,
        Self::Coordinator,
        Self::Link,
        Self::Nobody,
        Self::Checkpoint,
        Self::Access,
    ];

    /// The table.
    pub(super) fn follows(self) -> Follows {
        let (cure, rest, others_first) = match self {
            Self::Unknown | Self::Job => (Cure::None, Rest::None, true),
            Self::Node => (Cure::AnotherRing, Rest::ForOwners, true),
            Self::Machine => (Cure::OtherMachines, Rest::None, true),
            Self::Access => (Cure::OtherWorkers, Rest::None, true),
            // It rests only where there was none that could be older.
            Self::Checkpoint => (Cure::OlderCheckpoint, Rest::ForOwner, false),
            Self::Coordinator | Self::Link | Self::Nobody => (Cure::AnotherRing, Rest::ForOwner, false),
        };
        Follows { cure, rest, others_first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_owners_fault_takes_a_worker_from_another_owner_and_only_a_nodes_may_be_the_workers_own() {
        for fault in Fault::ALL {
            let Follows { cure, rest, .. } = fault.follows();
            assert_eq!(rest == Rest::ForOwners, fault == Fault::Node, "{fault:?}");
            // What ends a job, or goes elsewhere, needs no rest: it does not come back to the worker.
            let comes_back = matches!(cure, Cure::AnotherRing | Cure::OlderCheckpoint);
            assert_eq!(rest == Rest::None, !comes_back, "{fault:?}");
        }
    }
}
