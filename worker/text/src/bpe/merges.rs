//! Merges: the pairs of tokens that become one, in order.
//!
//! Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", algorithm 1, on bytes: of all
//! neighbours the pair of the lowest rank becomes one token, the leftmost first, until no pair is left that has a rank.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::alphabet::letters;

/// Words up to this many bytes are merged by looking at all pairs each time; longer ones with a queue, whose time does not
/// grow with the square of the length.
const SHORT: usize = 48;
/// After a word of more bytes the memory that it took is given back: about 50 bytes for each of them.
const KEPT: usize = 1 << 20;
/// The rank of a pair that never becomes one token.
const NEVER: u16 = u16::MAX;
/// An odd number with evenly spread bits.
const SPREAD: u32 = 0x9e37_79b9;

/// All merges, in a table with open addresses, and the tokens of single bytes.
#[derive(Debug)]
pub(super) struct Merges {
    of_byte: [u16; 256],
    slots: Box<[Slot]>,
    shift: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Two ids.
    pair: u32,
    /// [`NEVER`]: an empty slot.
    rank: u16,
    merged: u16,
}

const EMPTY: Slot = Slot { pair: 0, rank: NEVER, merged: 0 };

impl Merges {
    /// `vocabulary`: ids below 65,536 by the tokens' texts. `merges`: pairs of such texts, the first is merged first.
    ///
    /// # Errors
    /// What is wrong with them, for users.
    pub(super) fn new(
        vocabulary: &BTreeMap<String, u32>,
        merges: &[(String, String)],
    ) -> Result<Self, String> {
        let id = |token: &str| vocabulary.get(token).map(|id| *id as u16);
        // 1. The bytes.
        let mut of_byte = [0; 256];
        for (byte, (letter, place)) in letters().into_iter().zip(&mut of_byte).enumerate() {
            let missing = || {
                format!(
                    "has no token {letter:?}, which stands for the byte {byte:#04x}: it is no vocabulary of bytes"
                )
            };
            *place = id(letter.encode_utf8(&mut [0; 4])).ok_or_else(missing)?;
        }
        // CLIP's has the same bytes, but marks the ends of words.
        if vocabulary.contains_key("a</w>") && vocabulary.contains_key("!</w>") {
            return Err(
                "marks the ends of words with </w>, as CLIP's vocabulary does; allowed: one of GPT-2's kind"
                    .to_owned(),
            );
        }
        // 2. The pairs. At most half of the slots are taken.
        if merges.len() >= usize::from(NEVER) {
            return Err(format!("has {} merges; allowed: fewer than {NEVER}", merges.len()));
        }
        let size = (2 * merges.len().max(1)).next_power_of_two();
        let mut table =
            Self { of_byte, slots: vec![EMPTY; size].into_boxed_slice(), shift: 32 - size.trailing_zeros() };
        for (rank, (left, right)) in merges.iter().enumerate() {
            let token = |text: &str| {
                id(text).ok_or_else(|| {
                    format!(
                        "merge {} ({left} {right}) names {text:?}, which is no token of the vocabulary",
                        rank + 1
                    )
                })
            };
            let pair = joined(token(left)?, token(right)?);
            let slot = table.place(pair);
            if table.slots[slot].rank != NEVER {
                return Err(format!("has the merge {left} {right} twice"));
            }
            let merged = token(&format!("{left}{right}"))?;
            table.slots[slot] = Slot { pair, rank: rank as u16, merged };
        }
        Ok(table)
    }

    /// The slot of a pair, or the empty one where it would be.
    #[inline]
    fn place(&self, pair: u32) -> usize {
        let mut place = (pair.wrapping_mul(SPREAD) >> self.shift) as usize;
        while let Some(slot) = self.slots.get(place)
            && slot.rank != NEVER
            && slot.pair != pair
        {
            place = (place + 1) & (self.slots.len() - 1);
        }
        place
    }

    /// The rank of a pair and what it becomes.
    #[inline]
    fn find(&self, left: u16, right: u16) -> (u16, u16) {
        let slot = self.slots[self.place(joined(left, right))];
        (slot.rank, slot.merged)
    }
}

#[inline]
fn joined(left: u16, right: u16) -> u32 {
    u32::from(left) << 16 | u32::from(right)
}

/// Merges words, one after the other, in memory that it keeps, unless it is that of a very long word.
#[derive(Debug, Default)]
pub(super) struct Merger {
    tokens: Vec<u16>,
    /// Of each token and the next one.
    pairs: Vec<(u16, u16)>,
    links: Vec<Link>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

/// A token of a long word and its neighbours' places.
#[derive(Clone, Copy, Debug)]
struct Link {
    token: u16,
    before: usize,
    after: usize,
    alive: bool,
}

/// A pair that may be merged, the most urgent first: by rank, then from left to right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u16,
    place: usize,
    pair: u32,
    merged: u16,
}

const NOWHERE: usize = usize::MAX;

impl Merger {
    /// The tokens of a word that is not empty.
    pub(super) fn merge(&mut self, merges: &Merges, word: &[u8]) -> &[u16] {
        self.tokens.clear();
        if word.len() <= SHORT {
            self.tokens.extend(word.iter().map(|byte| merges.of_byte[usize::from(*byte)]));
            self.merge_short(merges);
        } else {
            self.merge_long(merges, word);
        }
        &self.tokens
    }

    fn merge_short(&mut self, merges: &Merges) {
        let Self { tokens, pairs, .. } = self;
        pairs.clear();
        pairs.extend(tokens.windows(2).map(|pair| merges.find(pair[0], pair[1])));
        // `min_by_key` gives the leftmost of equals.
        while let Some((place, (rank, merged))) =
            pairs.iter().copied().enumerate().min_by_key(|(_, (rank, _))| *rank)
            && rank != NEVER
        {
            tokens[place] = merged;
            tokens.remove(place + 1);
            pairs.remove(place);
            if place > 0 {
                pairs[place - 1] = merges.find(tokens[place - 1], merged);
            }
            if let Some(next) = tokens.get(place + 1) {
                pairs[place] = merges.find(merged, *next);
            }
        }
    }

    fn merge_long(&mut self, merges: &Merges, word: &[u8]) {
        let Self { tokens, links, queue, .. } = self;
        // 1. A list of the bytes, and a queue of all pairs that have a rank.
        links.clear();
        links.extend(word.iter().enumerate().map(|(place, byte)| Link {
            token: merges.of_byte[usize::from(*byte)],
            before: place.checked_sub(1).unwrap_or(NOWHERE),
            after: if place + 1 < word.len() { place + 1 } else { NOWHERE },
            alive: true,
        }));
        queue.clear();
        let candidate = |links: &[Link], place: usize| {
            let left = links.get(place)?;
            let right = links.get(left.after)?;
            let (rank, merged) = merges.find(left.token, right.token);
            let pair = joined(left.token, right.token);
            (rank != NEVER).then_some(Reverse(Candidate { rank, place, pair, merged }))
        };
        queue.extend((0..links.len()).filter_map(|place| candidate(links, place)));
        // 2. The most urgent pair, if it is still there.
        while let Some(Reverse(next)) = queue.pop() {
            let left = links[next.place];
            let Some(right) = links.get(left.after).copied().filter(|_| left.alive) else { continue };
            if joined(left.token, right.token) != next.pair {
                continue;
            }
            links[left.after].alive = false;
            links[next.place] = Link { token: next.merged, after: right.after, ..left };
            if let Some(after) = links.get_mut(right.after) {
                after.before = next.place;
            }
            queue.extend(candidate(links, left.before));
            queue.extend(candidate(links, next.place));
        }
        // 3. What is left.
        tokens.extend(links.iter().filter(|link| link.alive).map(|link| link.token));
        if word.len() > KEPT {
            *links = Vec::new();
            *queue = BinaryHeap::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes, and merges that overlap: "aa" first, then "ab", "aaa", "abab", "ba".
    fn small() -> Merges {
        let mut vocabulary: BTreeMap<String, u32> =
            letters().into_iter().map(String::from).zip(0..).collect();
        let merges = [("a", "a"), ("a", "b"), ("aa", "a"), ("ab", "ab"), ("b", "a"), ("aa", "aa")];
        for (left, right) in merges {
            let next = vocabulary.len() as u32;
            vocabulary.insert(format!("{left}{right}"), next);
        }
        let merges = merges.map(|(left, right)| (left.to_owned(), right.to_owned()));
        Merges::new(&vocabulary, &merges).unwrap()
    }

    #[test]
    fn the_lowest_rank_is_merged_first_and_the_leftmost_of_equals() {
        let (merges, mut merger) = (small(), Merger::default());
        let (a, b) = (u16::from(b'a'), u16::from(b'b'));
        assert_eq!(merger.merge(&merges, b"aaa"), [258]);
        assert_eq!(merger.merge(&merges, b"aab"), [256, b]);
        assert_eq!(merger.merge(&merges, b"abab"), [259]);
        assert_eq!(merger.merge(&merges, b"baab"), [b, 256, b]);
        assert_eq!(merger.merge(&merges, b"bab"), [b, 257]);
        assert_eq!(merger.merge(&merges, b"a"), [a]);
    }

    proptest! {
        /// Both ways give the same, whatever the length.
        #[test]
        fn the_queue_gives_what_looking_at_all_pairs_does(word in "[abc]{1,120}") {
            let (merges, mut merger) = (small(), Merger::default());
            merger.merge_long(&merges, word.as_bytes());
            let long = std::mem::take(&mut merger.tokens);
            merger.tokens.extend(word.bytes().map(|byte| merges.of_byte[usize::from(byte)]));
            merger.merge_short(&merges);
            prop_assert_eq!(long, merger.tokens);
        }
    }

    #[test]
    fn memory_of_a_very_long_word_is_given_back() {
        let (merges, mut merger) = (small(), Merger::default());
        assert_eq!(merger.merge(&merges, &b"ab".repeat(KEPT / 2)).len(), KEPT / 4);
        assert!(merger.links.capacity() > 0);
        assert_eq!(merger.merge(&merges, &b"ab".repeat(KEPT / 2 + 2)).len(), KEPT / 4 + 1);
        assert_eq!((merger.links.capacity(), merger.queue.capacity()), (0, 0));
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let bytes: BTreeMap<String, u32> = letters().into_iter().map(String::from).zip(0..).collect();
        let pair = |left: &str, right: &str| (left.to_owned(), right.to_owned());
        let refused = |vocabulary: &BTreeMap<String, u32>, merges: &[(String, String)], word: &str| {
            let problem = Merges::new(vocabulary, merges).unwrap_err();
            assert!(problem.contains(word), "{problem}");
        };
        let mut without = bytes.clone();
        without.remove("Ġ");
        refused(&without, &[], "0x20");
        refused(&bytes, &[pair("a", "b")], "\"ab\"");
        let mut twice = bytes.clone();
        twice.insert("ab".to_owned(), 256);
        refused(&twice, &[pair("a", "b"), pair("a", "b")], "twice");
        let mut clip = bytes.clone();
        clip.extend([("a</w>".to_owned(), 256), ("!</w>".to_owned(), 257)]);
        refused(&clip, &[], "</w>");
    }
}
