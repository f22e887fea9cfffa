//! Answers other workers' measurements of the network (`ringtune doctor --ring`).
//!
//! A measurement takes what the network gives, so that one runs at a time, for a bounded time, and none beside a ring: one
//! that runs ends when the worker takes a place in a ring.
//!
//! Of addresses it dials its caller's alone.

mod meter;
mod service;

pub(crate) use meter::{Meter, Rate};
pub(crate) use service::{About, ProbeServer};

use bytes::Bytes;

/// Bytes of one message of a measurement.
const CHUNK_BYTES: usize = 256 << 10;
/// The longest that a caller may ask a measurement to last, and how long one lasts that does not say.
pub(crate) const LONGEST_MILLISECONDS: u32 = 3000;
pub(crate) const USUAL_MILLISECONDS: u32 = 1000;

/// Incompressible bytes to send.
pub(crate) fn noise() -> Bytes {
    // Marsaglia's xorshift: its bytes look random to whatever compresses.
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(CHUNK_BYTES / 8).flatten().collect::<Vec<u8>>().into()
}

#[cfg(test)]
mod tests;
