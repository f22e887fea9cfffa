//! Faults that are planted in the simulated world, to see that the schedules find them.

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// A ring takes in what a rank sends that is still in the ring before it.
    SkippedEpochCheck,
    /// The coordinator says that it has stored what it could not store.
    LostAcknowledgement,
    /// A step that a broken ring cut off is not rolled back, and done again.
    DoubledStep,
    /// A rank adds its own parts first.
    OrderOfSum,
    /// A checkpoint is taken off before the one that takes its place is there.
    CheckpointDeletedEarly,
    /// The ranks of a new ring go on from the one that is furthest behind.
    StateFromBehind,
}
