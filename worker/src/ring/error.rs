//! A rank's errors of its ring.

use ringtune_shared::{
    ids::ContentHash,
    ring::{PlanError, RingError},
    state::StateError,
};

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
    /// A neighbour, or the rank that gives the state, cannot be reached.
    #[error("cannot reach rank {rank} at {address}: {reason}")]
    Unreachable {
        /// The neighbour.
        rank: usize,
        /// Its address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The next rank will not have this one, however often it is asked.
    #[error("rank {rank} at {address} refused the connection: {reason}")]
    Refused {
        /// The next rank.
        rank: usize,
        /// Its address.
        address: String,
        /// Its reason.
        reason: String,
    },
    /// The state that another rank was to give did not come, or is not the one.
    #[error("the state of rank {rank} at {address}: {problem}")]
    State {
        /// The giver.
        rank: usize,
        /// Its address.
        address: String,
        /// The problem.
        problem: StateProblem,
    },
    /// A newer membership of the same ring has taken the place.
    #[error("a newer epoch of the ring has begun")]
    Replaced,
    /// The rows that came are not those of a step.
    #[error("the exchange gave rows that are no step's")]
    Rows,
    /// A task of this worker died.
    #[error("a part of the worker ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Why a state was not taken in. Nothing of it is used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateProblem {
    /// The giver gives nothing, or not this.
    #[error("it was refused: {reason}")]
    Refused {
        /// Its reason.
        reason: String,
    },
    /// The connection ended in the middle.
    #[error("its stream broke after {bytes} bytes: {reason}")]
    Broken {
        /// Bytes received before.
        bytes: u64,
        /// The transport's reason.
        reason: String,
    },
    /// The stream ended, but not with its end.
    #[error("its stream was cut after {bytes} bytes")]
    Cut {
        /// Bytes received before.
        bytes: u64,
    },
    /// Nothing came for a long time.
    #[error("nothing came for {seconds} s after {bytes} bytes")]
    Silent {
        /// Bytes received before.
        bytes: u64,
        /// For how long.
        seconds: f64,
    },
    /// More came than a state has.
    #[error("its stream is longer than {limit} bytes")]
    TooLong {
        /// Bytes at most.
        limit: u64,
    },
    /// A part that is none.
    #[error("a part of {given} bytes came; allowed: 1 to {limit}")]
    Chunk {
        /// Its bytes.
        given: usize,
        /// Bytes at most.
        limit: usize,
    },
    /// Something followed.
    #[error("something came after its end")]
    AfterTheEnd,
    /// A part of a kind that this version does not know.
    #[error("a part came that this version does not know")]
    Unknown,
    /// Not as many bytes as there should be.
    #[error("its stream has {found} bytes; its end says {expected}")]
    Length {
        /// As its end says.
        expected: u64,
        /// Bytes received.
        found: u64,
    },
    /// Other bytes than were sent.
    #[error("its stream was damaged on its way: it has the hash {found}; its end says {expected}")]
    Hash {
        /// As its end says, in hexadecimal.
        expected: String,
        /// Of what came.
        found: ContentHash,
    },
    /// Complete, but not a state of this kind.
    #[error("it cannot be read: {0}")]
    Unreadable(StateError),
    /// Complete, but not the state that the ranks agreed on.
    #[error("it has the hash {found}; the ranks agreed on {expected}")]
    Other {
        /// As the ranks said.
        expected: ContentHash,
        /// Of what came.
        found: ContentHash,
    },
}
