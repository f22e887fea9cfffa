//! A bounded cache of short words' tokens: a new word replaces an older one.

/// Bytes of the longest word that is remembered.
const LONGEST_WORD: usize = 15;
/// Tokens of a word that is remembered.
const MOST_TOKENS: usize = 7;
/// Places, as a power of two: 2 MB.
const PLACES_LOG2: u32 = 16;
/// An odd number with evenly spread bits: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A table with one entry per word.
#[derive(Debug)]
pub(super) struct Cache {
    places: Box<[Entry]>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    /// The bytes of the word and, in the last one, their number; 0: nothing.
    word: u128,
    tokens: [u16; MOST_TOKENS],
    count: u16,
}

/// The result of a look-up.
pub(super) enum Kept<'a> {
    Tokens(&'a [u16]),
    /// Nothing; this remembers it.
    Nothing(Slot<'a>),
}

/// Slot of a word's tokens, if they are cached.
pub(super) struct Slot<'a>(Option<(&'a mut Entry, u128)>);

impl Cache {
    pub(super) fn new() -> Self {
        Self { places: vec![Entry::default(); 1 << PLACES_LOG2].into_boxed_slice() }
    }

    pub(super) fn find(&mut self, word: &[u8]) -> Kept<'_> {
        let mut bytes = [0; 16];
        let Some(room) = bytes[..LONGEST_WORD].get_mut(..word.len()) else {
            return Kept::Nothing(Slot(None));
        };
        room.copy_from_slice(word);
        bytes[LONGEST_WORD] = word.len() as u8;
        let word = u128::from_le_bytes(bytes);
        let mixed = (word as u64).wrapping_mul(SPREAD) ^ (word >> 64) as u64;
        let place = &mut self.places[(mixed.wrapping_mul(SPREAD) >> (64 - PLACES_LOG2)) as usize];
        if place.word == word {
            return Kept::Tokens(&place.tokens[..usize::from(place.count).min(MOST_TOKENS)]);
        }
        Kept::Nothing(Slot(Some((place, word))))
    }
}

impl Slot<'_> {
    /// Remembers the tokens, if they are few.
    pub(super) fn keep(self, tokens: &[u16]) {
        let Some((place, word)) = self.0 else { return };
        let mut room = [0; MOST_TOKENS];
        if let Some(first) = room.get_mut(..tokens.len()) {
            first.copy_from_slice(tokens);
            *place = Entry { word, tokens: room, count: tokens.len() as u16 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(cache: &mut Cache, word: &[u8]) -> Option<Vec<u16>> {
        match cache.find(word) {
            Kept::Tokens(tokens) => Some(tokens.to_vec()),
            Kept::Nothing(_) => None,
        }
    }

    fn keep(cache: &mut Cache, word: &[u8], tokens: &[u16]) {
        if let Kept::Nothing(slot) = cache.find(word) {
            slot.keep(tokens);
        }
    }

    #[test]
    fn short_words_are_remembered_and_told_apart() {
        let mut cache = Cache::new();
        // A zero byte at the end is a part of the word.
        for (word, tokens) in [(&b"a"[..], vec![1]), (b"a\0", vec![2, 3]), (b"fifteen bytes!!", vec![4; 7])] {
            assert_eq!(kept(&mut cache, word), None);
            keep(&mut cache, word, &tokens);
            assert_eq!(kept(&mut cache, word), Some(tokens));
        }
    }

    #[test]
    fn long_words_are_not() {
        let mut cache = Cache::new();
        keep(&mut cache, b"sixteen bytes !!", &[1]);
        keep(&mut cache, b"many", &[1; 8]);
        assert_eq!((kept(&mut cache, b"sixteen bytes !!"), kept(&mut cache, b"many")), (None, None));
    }
}
