//! Tokens to text: the bytes of tokens, and the characters that bytes are as they come.
//!
//! A character may be of several tokens, so that bytes are held back until all of it is there. What is no UTF-8 becomes
//! U+FFFD as Python's `errors="replace"` has it, and so as transformers' `decode` has it.

use std::{
    collections::{BTreeMap, BTreeSet},
    str,
};

use super::alphabet;

/// The bytes of all tokens.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Begin of each id's bytes, and the end of the last one's.
    starts: Vec<u32>,
}

impl Pieces {
    /// `largest`: the largest id of the vocabulary.
    pub(super) fn new(vocabulary: &BTreeMap<String, u32>, added: &BTreeSet<u32>, largest: u32) -> Self {
        // Of two texts with one id, the first in the order of their letters: a table's own order is another each time.
        let mut texts: Vec<Option<&str>> = vec![None; largest as usize + 1];
        for (text, id) in vocabulary {
            if let Some(place) = texts.get_mut(*id as usize)
                && place.is_none_or(|other| text.as_str() < other)
            {
                *place = Some(text);
            }
        }
        let letters: BTreeMap<char, u8> = alphabet::letters().into_iter().zip(0u8..=255).collect();
        let (mut bytes, mut starts) = (Vec::new(), vec![0]);
        for (text, id) in texts.iter().zip(0u32..) {
            let text = text.unwrap_or_default();
            // As the crate `tokenizers` has it: a token with any other letter is its own text.
            let written: Option<Vec<u8>> = text.chars().map(|letter| letters.get(&letter).copied()).collect();
            match written {
                Some(written) if !added.contains(&id) => bytes.extend(written),
                _ => bytes.extend(text.as_bytes()),
            }
            // A tokenizer's file has at most 64 MiB.
            starts.push(bytes.len() as u32);
        }
        Self { bytes, starts }
    }

    pub(super) fn bytes(&self, token: u32) -> &[u8] {
        let place = |id: usize| self.starts.get(id).map(|start| *start as usize);
        match (place(token as usize), place(token as usize + 1)) {
            (Some(start), Some(end)) => &self.bytes[start..end],
            _ => &[],
        }
    }
}

/// Text out of bytes that come piece by piece: only whole characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextStream {
    /// The beginning of a character whose rest is missing: at most 3 bytes between calls.
    held: Vec<u8>,
}

impl TextStream {
    /// At the beginning of a text.
    pub fn new() -> Self {
        Self::default()
    }

    /// All complete characters after these bytes. Invalid bytes are U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.held.as_slice();
        loop {
            match str::from_utf8(rest) {
                Ok(whole) => {
                    text.push_str(whole);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (whole, behind) = rest.split_at(error.valid_up_to());
                    text.push_str(str::from_utf8(whole).unwrap_or_default());
                    rest = behind;
                    let Some(wrong) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[wrong..];
                }
            }
        }
        self.held = rest.to_vec();
        text
    }

    /// The rest at the end of the text: U+FFFD for an incomplete character.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn a_character_is_said_when_all_of_it_is_there() {
        let mut stream = TextStream::new();
        let smile = "a😀b".as_bytes();
        assert_eq!(stream.push(&smile[..2]), "a");
        assert_eq!(stream.push(&smile[2..4]), "");
        assert_eq!(stream.push(&smile[4..]), "😀b");
        assert_eq!(stream.finish(), "");
        // Incomplete characters in the middle and at the end.
        assert_eq!(stream.push(b"\xf0\x9f"), "");
        assert_eq!(stream.push(b"c\xe6\x97"), "\u{fffd}c");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream, TextStream::new());
    }

    proptest! {
        #[test]
        fn pieces_of_any_bytes_are_the_text_of_the_whole(pieces in vec(vec(any::<u8>(), 0..5), 0..20)) {
            let mut stream = TextStream::new();
            let mut text: String = pieces.iter().map(|piece| {
                let said = stream.push(piece);
                assert!(stream.held.len() < 4);
                said
            }).collect();
            text.push_str(&stream.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&pieces.concat()).into_owned());
        }

        #[test]
        fn any_text_cut_anywhere_is_the_same_text(text in any::<String>(), size in 1usize..4) {
            let mut stream = TextStream::new();
            let mut said: String = text.as_bytes().chunks(size).map(|piece| stream.push(piece)).collect();
            said.push_str(&stream.finish());
            prop_assert_eq!(said, text);
        }
    }

    #[test]
    fn tokens_are_bytes_and_added_ones_their_own_text() {
        let vocabulary: BTreeMap<String, u32> =
            [("Ġa", 0), ("Ã", 1), ("ľ", 2), ("日", 3), ("Ġ|", 6), ("zz", 5), ("b", 5)]
                .map(|(text, id)| (text.to_owned(), id))
                .into();
        let pieces = Pieces::new(&vocabulary, &BTreeSet::from([6]), 6);
        let bytes = |id| pieces.bytes(id);
        assert_eq!((bytes(0), bytes(1), bytes(2)), (&b" a"[..], &b"\xc3"[..], &b"\x9c"[..]));
        assert_eq!((bytes(3), bytes(6)), ("日".as_bytes(), "Ġ|".as_bytes()));
        assert_eq!(
            (bytes(4), bytes(5), bytes(7), bytes(u32::MAX)),
            (&b""[..], &b"b"[..], &b""[..], &b""[..])
        );
    }
}
