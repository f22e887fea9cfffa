//! What goes from a rank to the next one.

use bytes::Bytes;

use crate::checksum::crc32c;
use crate::ids::{Epoch, JobId};

/// One segment of one message, and where it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The job whose ring it is.
    pub job: JobId,
    /// The ring's epoch.
    pub epoch: Epoch,
    /// Which collective of the epoch, from 1.
    pub collective: u64,
    /// Which hop of the collective, from 0.
    pub hop: u32,
    /// Which segment of the hop's message, from 0.
    pub segment: u32,
    /// Numbers in fp32, little-endian; none only where the whole message is empty.
    pub payload: Bytes,
    /// CRC-32C of the payload, as it was sent. None: it comes from a rank that makes none, and is not checked.
    pub checksum: Option<u32>,
}

impl Frame {
    /// The same with the checksum of its payload.
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

/// Numbers as they travel: fp32, little-endian.
pub(super) fn encode(numbers: &[f32]) -> Bytes {
    let mut bytes = vec![0; numbers.len() * 4];
    for (encoded, number) in bytes.chunks_exact_mut(4).zip(numbers) {
        encoded.copy_from_slice(&number.to_le_bytes());
    }
    bytes.into()
}

/// The numbers of a payload. Its length must have been checked to be a multiple of 4.
pub(super) fn decode(payload: &[u8]) -> impl Iterator<Item = f32> {
    payload.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_travel_bit_for_bit() {
        let numbers = [0.0, -0.0, 1.5, f32::MIN_POSITIVE / 2.0, f32::INFINITY, f32::from_bits(0x7fc0_1234)];
        let payload = encode(&numbers);
        assert_eq!(&payload[8..12], [0, 0, 0xc0, 0x3f]);
        let back: Vec<u32> = decode(&payload).map(f32::to_bits).collect();
        assert_eq!(back, numbers.map(f32::to_bits));
    }
}
