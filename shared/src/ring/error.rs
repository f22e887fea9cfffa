//! Failures of a ring.

use std::time::Duration;

use crate::ids::Epoch;

/// Why a ring failed. Once failed, a ring stays failed, and every collective gives the same error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The connection with a neighbour broke, or the neighbour left while it was still needed.
    #[error("rank {rank} was lost: {reason}")]
    PeerLost {
        /// The neighbour.
        rank: usize,
        /// The transport's reason.
        reason: String,
    },
    /// A neighbour gave no sign of life.
    #[error("rank {rank} gave no sign of life for {} s", silent.as_secs_f64())]
    Stalled {
        /// The neighbour.
        rank: usize,
        /// For how long at least.
        silent: Duration,
    },
    /// A neighbour speaks for an earlier membership of the ring.
    #[error("rank {rank} speaks for epoch {got}, but the ring is at epoch {current}")]
    StaleEpoch {
        /// The neighbour.
        rank: usize,
        /// Its epoch.
        got: Epoch,
        /// The ring's.
        current: Epoch,
    },
    /// A neighbour sent something that does not belong here.
    #[error("rank {rank} broke the protocol: {problem}")]
    Protocol {
        /// The neighbour.
        rank: usize,
        /// What was received and what was expected.
        problem: String,
    },
    /// A frame was damaged on its way.
    #[error(
        "what rank {rank} sent was damaged on its way: its checksum is {found:08x} instead of {expected:08x}"
    )]
    Damaged {
        /// The neighbour.
        rank: usize,
        /// The checksum that was sent.
        expected: u32,
        /// Of what came.
        found: u32,
    },
    /// This rank was told to stop, or gave a collective up half-way.
    #[error("the exchange was cancelled")]
    Cancelled,
    /// This rank asked for something impossible.
    #[error("{0}")]
    Misuse(
        /// What was given and what is allowed.
        String,
    ),
}
