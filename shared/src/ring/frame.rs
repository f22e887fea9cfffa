//! Frames, which travel from a rank to the next.

use bytes::BytesMut;

use super::Payload;
use super::lent::bytes_of;
use crate::checksum::{Crc32c, crc32c};
use crate::ids::{Epoch, JobId};

/// One segment of one message, and where it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The job whose ring it is.
    pub job: JobId,
    /// The ring's epoch.
    pub epoch: Epoch,
    /// Number of the collective in the epoch, from 1.
    pub collective: u64,
    /// Number of the hop in the collective, from 0.
    pub hop: u32,
    /// Number of the segment in the hop's message, from 0.
    pub segment: u32,
    /// Numbers in fp32, little-endian; none only where the whole message is empty.
    pub payload: Payload,
    /// CRC-32C of the payload, as it was sent. None: it comes from a rank that makes none, and is not checked.
    pub checksum: Option<u32>,
}

impl Frame {
    /// Sets the checksum of its payload.
    pub fn sealed(self) -> Self {
        Self { checksum: Some(crc32c(&self.payload)), ..self }
    }
}

/// A frame, or a mere sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// Data.
    Frame(Frame),
    /// The sender lives and holds its rank.
    Pulse {
        /// The job whose ring it is.
        job: JobId,
        /// The ring's epoch.
        epoch: Epoch,
    },
}

impl Signal {
    /// The job whose ring it is.
    pub fn job(&self) -> JobId {
        match self {
            Signal::Frame(frame) => frame.job,
            Signal::Pulse { job, .. } => *job,
        }
    }

    /// The ring's epoch, as the sender has it.
    pub fn epoch(&self) -> Epoch {
        match self {
            Signal::Frame(frame) => frame.epoch,
            Signal::Pulse { epoch, .. } => *epoch,
        }
    }
}

/// Bytes of a number.
pub(super) const WIDTH: usize = size_of::<f32>();

/// Numbers that are worked on at a time: they stay in a core's nearest memory, and checksums begin and end with each part.
pub(super) const SOME: usize = 4096;

// What follows is called by code that other crates make of generics, and they are not compiled for speed as this one is:
// none of it is to be inlined there.

/// Appends numbers as they travel: fp32, little-endian. `sent`: the checksum of all that is appended.
#[inline(never)]
pub(super) fn encode(numbers: &[f32], bytes: &mut BytesMut, sent: &mut Crc32c) {
    for numbers in numbers.chunks(SOME) {
        let numbers = bytes_of(numbers);
        sent.update(numbers);
        bytes.extend_from_slice(numbers);
    }
}

/// Puts the numbers of a payload in place of others; the payload's checksum. Its length must have been checked to fit.
#[inline(never)]
pub(super) fn replace(kept: &mut [f32], payload: &[u8]) -> u32 {
    let mut came = Crc32c::new();
    for (kept, payload) in parts(kept, payload) {
        came.update(payload);
        for (kept, bytes) in kept.iter_mut().zip(payload.as_chunks().0) {
            *kept = f32::from_le_bytes(*bytes);
        }
    }
    came.finish()
}

/// Adds others to the numbers of a payload, in this order; the checksums of the payload and of the sums. Its length must have
/// been checked to fit.
#[inline(never)]
pub(super) fn add(kept: &mut [f32], payload: &[u8]) -> (u32, u32) {
    let (mut came, mut sums) = (Crc32c::new(), Crc32c::new());
    for (kept, payload) in parts(kept, payload) {
        came.update(payload);
        for (kept, bytes) in kept.iter_mut().zip(payload.as_chunks().0) {
            *kept += f32::from_le_bytes(*bytes);
        }
        sums.update(bytes_of(kept));
    }
    (came.finish(), sums.finish())
}

fn parts<'a>(kept: &'a mut [f32], payload: &'a [u8]) -> impl Iterator<Item = (&'a mut [f32], &'a [u8])> {
    kept.chunks_mut(SOME).zip(payload.chunks(SOME * WIDTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_travel_bit_for_bit() {
        let numbers = [0.0, -0.0, 1.5, f32::MIN_POSITIVE / 2.0, f32::INFINITY, f32::from_bits(0x7fc0_1234)];
        let mut payload = BytesMut::new();
        let mut sent = Crc32c::new();
        encode(&numbers, &mut payload, &mut sent);
        assert_eq!((&payload[8..12], sent.finish()), (&[0, 0, 0xc0, 0x3f][..], crc32c(&payload)));
        let mut back = [0.0; 6];
        replace(&mut back, &payload);
        assert_eq!(back.map(f32::to_bits), numbers.map(f32::to_bits));
    }

    #[test]
    fn checksums_are_those_of_what_came_and_of_what_it_became() {
        for length in [0, 1, 100, SOME, SOME + 1, 3 * SOME - 1] {
            let numbers: Vec<f32> = (0..length).map(|number| number as f32 / 8.0).collect();
            let mut payload = BytesMut::new();
            encode(&numbers, &mut payload, &mut Crc32c::new());
            let mut kept = vec![1.0; length];
            assert_eq!(replace(&mut kept, &payload), crc32c(&payload), "{length}");
            assert_eq!(kept, numbers);
            let (came, sums) = add(&mut kept, &payload);
            let doubled: Vec<f32> = numbers.iter().map(|number| 2.0 * number).collect();
            assert_eq!(kept, doubled);
            assert_eq!((came, sums), (crc32c(&payload), crc32c(bytes_of(&doubled))), "{length}");
        }
    }
}
