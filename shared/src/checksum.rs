//! CRC-32C (Castagnoli): what tells damaged bytes from whole ones, where nobody means harm.
//! Source: RFC 3720, sections 12.1 and B.4.

use crc_fast::{CrcAlgorithm, Digest, checksum};

// "Crc32Iscsi" is its name in catalogues of checksums. It has 32 bits: nothing is cut.
const CRC32C: CrcAlgorithm = CrcAlgorithm::Crc32Iscsi;

/// The checksum of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CRC32C, bytes) as u32
}

/// The checksum of bytes that come one after the other.
pub(crate) struct Crc32c(Digest);

impl Crc32c {
    /// Of none.
    pub(crate) fn new() -> Self {
        Self(Digest::new(CRC32C))
    }

    /// Takes more.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Of all that came.
    pub(crate) fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, B.4, and the check value that catalogues of checksums list.
    #[test]
    fn published_values() {
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, expected) in [
            (&[0; 32][..], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (b"123456789", 0xe306_9283),
            (b"", 0),
        ] {
            assert_eq!(crc32c(bytes), expected);
        }
    }

    /// Long inputs go another way through the processor than short ones.
    #[test]
    fn every_length_gives_what_the_definition_does() {
        let by_definition = |bytes: &[u8]| {
            !bytes.iter().fold(u32::MAX, |sum, byte| {
                (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
                    (sum >> 1) ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 }
                })
            })
        };
        let bytes: Vec<u8> = (0..5000u32).map(|index| (index * index % 251) as u8).collect();
        for length in (0..300).chain([1000, 4095, 4096, 5000]) {
            let expected = by_definition(&bytes[..length]);
            assert_eq!(crc32c(&bytes[..length]), expected, "{length}");
            let mut in_parts = Crc32c::new();
            bytes[..length].chunks(1024).for_each(|part| in_parts.update(part));
            assert_eq!(in_parts.finish(), expected, "{length} in parts");
        }
    }
}
