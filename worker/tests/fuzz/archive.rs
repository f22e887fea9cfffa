//! Containers put together again around changed contents, so that a checksum does not end every attempt.

/// CRC-32 as in PNG and ZIP. Source: ISO 3309, PNG specification annex D.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)))
    })
}

/// Makes the checksums and lengths of a PNG, WebP or JPEG file fit what it holds as far as it can be followed.
pub(crate) fn mend_picture(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        let mut start = 8;
        while let Some(head) = bytes.get(start..start + 8) {
            let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
            let end = start + 8 + length.min(bytes.len());
            let Some(covered) = bytes.get(start + 4..end) else { break };
            let sum = crc32(covered).to_be_bytes();
            let Some(place) = bytes.get_mut(end..end + 4) else { break };
            place.copy_from_slice(&sum);
            start = end + 4;
        }
    } else if bytes.starts_with(b"RIFF") && bytes.len() > 8 {
        let length = (bytes.len() as u32 - 8).to_le_bytes();
        bytes[4..8].copy_from_slice(&length);
    } else if bytes.starts_with(b"\xff\xd8") && !bytes.ends_with(b"\xff\xd9") {
        bytes.extend(b"\xff\xd9");
    }
    bytes
}

/// Makes the length in front of a safetensors header fit the header: to the last brace and the blanks behind it.
pub(crate) fn mend_safetensors(mut bytes: Vec<u8>) -> Vec<u8> {
    let header = bytes.get(8..).and_then(|rest| rest.windows(2).rposition(|pair| pair == b"}}"));
    if let Some(end) = header {
        let blanks = bytes[8 + end + 2..].iter().take_while(|byte| **byte == b' ').count();
        let length = (end as u64 + 2 + blanks as u64).to_le_bytes();
        bytes[..8].copy_from_slice(&length);
    }
    bytes
}

#[test]
fn the_checksum_is_the_published_one() {
    assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
}
