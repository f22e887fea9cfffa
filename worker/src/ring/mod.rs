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
//!
//! # Streams
//!
//! A stream is an ordinary gRPC stream, but framed by hand (`wire.rs`, `stream.rs`) on an HTTP/2 connection that the
//! rank opens itself (`call.rs`). A segment is one frame. It is written from where its head and payload lie, and an
//! incoming segment is a slice of what the connection has read: a payload is never copied into a message or out of one.
//! Checksums are computed part by part while a segment is added to.
//!
//! Between workers of one machine the stream goes through a Unix socket. The called worker invites the caller to it on
//! its port (`lines.rs`; `accept/local.rs` of the security crate), and large payloads go through shared memory
//! (`memory/`).
//!
//! Between machines there are up to 8 streams, each on a connection of its own. If a step brings enough to the ring,
//! the rank measures the rate of one connection to the next rank and of several (`measure.rs`), and a pure function
//! chooses (`stripes.rs`). Signals are dealt out to the streams and taken from them in turns (`striped.rs` of the
//! shared crate).
//!
//! All connections of a worker's rings, and its gRPC port, are on one thread (`thread.rs`). `make bench-ring` times
//! all-reduces beside Gloo's.
//!
//! # Invariants
//!
//! - Every chunk carries its epoch, and an older one is refused. A peer that dies or stalls is a typed error by a
//!   deadline that runs from its last sign of life, never a hang.
//! - A stream or a state is given only to the worker that the ring's view has at that rank, by its certificate
//!   (`admission.rs`).

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
