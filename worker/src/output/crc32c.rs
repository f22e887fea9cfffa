//! The checksum of TensorFlow's records: CRC-32C (Castagnoli), masked.
//! Source: RFC 3720, section 12.1 and B.4; tensorflow/core/lib/hash/crc32c.h.

/// Castagnoli's polynomial, lowest bit first.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const MASK: u32 = 0xa282_ead8;
const TABLE: [u32; 256] = table();

/// The masked checksum: a checksum of bytes that hold their own checksum would otherwise say nothing.
pub(super) fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}

fn crc32c(bytes: &[u8]) -> u32 {
    let update = |sum: u32, byte: &u8| TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize] ^ (sum >> 8);
    !bytes.iter().fold(u32::MAX, update)
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
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
}
