//! The byte alphabet of vocabularies: each byte has its own letter, so that tokens are texts in JSON.
//!
//! Source: OpenAI's `encoder.py`, `bytes_to_unicode`.

/// The letter of each byte: itself where it is a visible letter of Latin-1, else the next one from U+0100 on.
pub(super) fn letters() -> [char; 256] {
    let mut letters = ['\0'; 256];
    let mut next = 0x100;
    for (byte, letter) in (0u8..=255).zip(&mut letters) {
        *letter = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap_or_default()
            }
        };
    }
    letters
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_byte_has_a_letter_of_its_own() {
        let letters = letters();
        assert_eq!(letters.iter().collect::<BTreeSet<_>>().len(), 256);
        // As in GPT-2's vocabulary: a space, a line feed, the last of those that are moved.
        assert_eq!([letters[0x20], letters[0x0a], letters[0xad]], ['Ġ', 'Ċ', 'Ń']);
        assert_eq!([letters[b'a' as usize], letters[0xe9]], ['a', 'é']);
    }
}
