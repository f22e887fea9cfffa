//! This worker's places in rings, over gRPC.
//!
//! A rank takes a [`Seat`] when it is assigned: from then on the previous rank's stream finds it. When all ranks
//! are ready it connects ([`Seat::connect`]): it dials the next rank, takes the stream that came from the previous
//! one, and holds a [`RankRing`] until the job ends. The exchange itself is `ringtune_shared::ring`.

mod error;
mod rank;
mod registry;
mod service;
mod transport;

pub use error::Error;
pub use rank::{Gathered, RankRing};
pub use registry::{RingOptions, Rings, Seat};
pub use service::RingServer;
pub use transport::{GrpcTransport, IncomingStream};
pub(crate) use transport::{MOST_FRAME_BYTES, WINDOW_BYTES};

#[cfg(test)]
mod tests;
