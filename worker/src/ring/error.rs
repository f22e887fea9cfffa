//! What can go wrong in a ring, as a rank sees it.

use ringtune_shared::ring::{PlanError, RingError};

/// Names the neighbour it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The exchange failed.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The members make no ring.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The next rank cannot be reached.
    #[error("cannot reach rank {rank} at {address}: {reason}")]
    Unreachable {
        /// The next rank.
        rank: usize,
        /// Its address.
        address: String,
        /// What happened.
        reason: String,
    },
    /// The previous rank did not dial.
    #[error("rank {rank} at {address} did not connect within {seconds} s")]
    NotCalled {
        /// The previous rank.
        rank: usize,
        /// Its address.
        address: String,
        /// The deadline.
        seconds: f64,
    },
    /// A newer membership of the same ring has taken the place.
    #[error("a newer epoch of the ring has begun")]
    Replaced,
    /// The rows that came are not those of a step.
    #[error("the exchange gave rows that are no step's")]
    Rows,
}
