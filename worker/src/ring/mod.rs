//! This worker's places in rings, over gRPC.
//!
//! A rank takes a [`Seat`] when it is told of a ring: from then on the previous rank's stream finds it, and one that came
//! before, too. Then it connects ([`Seat::connect`]): it dials the next rank until that one has its seat, takes the stream
//! that came from the previous one, and holds a [`RankRing`] until the ring breaks, or is left. The exchange itself is
//! `ringtune_shared::ring`.
//!
//! A worker may have a place in one epoch of a job's ring at a time. What comes from an older epoch is refused; each epoch
//! has connections of its own, so that what is left of the one before disturbs nothing.
//!
//! A rank that enters a ring may be behind. One that is not offers its state ([`Rings::offer_state`]), and the other one
//! fetches it ([`Rings::fetch_state`]).

mod admission;
mod call;
mod error;
mod lines;
mod measure;
mod memory;
mod news;
mod outgoing;
mod rank;
mod reach;
mod registry;
mod seat;
mod service;
mod state_give;
mod state_take;
mod stream;
mod stripes;
mod thread;
mod traffic;
mod transport;
mod trouble;
mod wire;

pub use error::{Error, StateProblem};
pub use news::News;
pub use rank::{Gathered, RankRing};
pub use registry::{RingOptions, Rings, StateOffer};
pub use seat::Seat;
pub use service::{RingGrpc, RingServer};
pub use state_take::{FetchFrom, StateRoom};
pub use thread::RingThread;
pub use traffic::{StepExchange, Traffic};
pub use trouble::{Trouble, TroubleKind};
pub use wire::{MOST_FRAME_BYTES, WINDOW_BYTES};

#[cfg(test)]
mod tests;
