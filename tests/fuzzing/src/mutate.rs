//! Changed copies of valid inputs.

/// SplitMix64: small, fast, the same everywhere.
/// Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random number below `end`, which is at least 1.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next_number() % end.max(1) as u64) as usize
    }

    /// A random element; None if there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { Some(&from[self.below(from.len())]) }
    }
}

/// Numbers at the edges of what sizes, offsets and counts are kept in.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    (1 << 62) - 1,
    i64::MAX as u64,
    u64::MAX,
];
/// As above as text, and separators of numbers and names.
const TEXTS: [&str; 24] = [
    "0",
    "-1",
    "1",
    "18446744073709551615",
    "9223372036854775808",
    "4294967296",
    "1e400",
    "-0.0",
    "nan",
    "inf",
    "1e-320",
    "[",
    "]",
    "{",
    "}",
    "\"",
    "'",
    ",",
    "=",
    "\n",
    "\\u0000",
    "\u{202e}",
    "..",
    "/",
];
/// No input grows beyond this.
const MOST_BYTES: usize = 1 << 16;

/// A copy of one of `inputs` with one to eight changes; `words` are what such inputs are made of.
pub(crate) fn mutate(random: &mut Random, inputs: &[Vec<u8>], words: &[String]) -> Vec<u8> {
    let mut bytes = random.pick(inputs).cloned().unwrap_or_default();
    for _ in 0..=random.below(8) {
        change(random, &mut bytes, inputs, words);
    }
    bytes.truncate(MOST_BYTES);
    bytes
}

fn change(random: &mut Random, bytes: &mut Vec<u8>, inputs: &[Vec<u8>], words: &[String]) {
    let length = bytes.len();
    let place = random.below(length + 1);
    let some = |random: &mut Random| random.below(length - place + 1).min(1 + random.below(64));
    match random.below(12) {
        // Change a byte or bit.
        0 | 1 if place < length => bytes[place] ^= 1 << random.below(8),
        2 if place < length => bytes[place] = random.next_number() as u8,
        // A number at an edge, in any width and byte order.
        3 | 4 => {
            let number = NUMBERS[random.below(NUMBERS.len())].wrapping_sub(random.below(2) as u64);
            let width = 1usize << random.below(4);
            let encoded = if random.below(2) == 0 {
                number.to_le_bytes()[..width].to_vec()
            } else {
                number.to_be_bytes()[8 - width..].to_vec()
            };
            overwrite(bytes, place, &encoded);
        }
        // Something is missing, or the end is.
        5 => {
            let end = place + some(random);
            bytes.drain(place..end);
        }
        6 if random.below(4) == 0 => bytes.truncate(place),
        // Something stands there twice, or elsewhere.
        7 => {
            let copied = bytes[place..place + some(random)].to_vec();
            let target = random.below(length + 1);
            bytes.splice(target..target, copied);
        }
        // A part of another input.
        8 => {
            if let Some(other) = random.pick(inputs) {
                let start = random.below(other.len() + 1);
                let end = (start + random.below(256)).min(other.len());
                bytes.splice(place..place, other[start..end].iter().copied());
            }
        }
        // A line of another input instead of a line.
        9 => swap_line(random, bytes, inputs),
        // A word, inserted or in the place of another.
        10 => {
            let word = random.pick(words).map_or(&b""[..], |word| word.as_bytes()).to_vec();
            replace_or_insert(random, bytes, place, &word);
        }
        _ => {
            let text = TEXTS[random.below(TEXTS.len())].as_bytes().to_vec();
            replace_or_insert(random, bytes, place, &text);
        }
    }
}

fn overwrite(bytes: &mut [u8], place: usize, with: &[u8]) {
    for (byte, new) in bytes[place..].iter_mut().zip(with) {
        *byte = *new;
    }
}

/// In the place of the word or number at `place`, or before it.
fn replace_or_insert(random: &mut Random, bytes: &mut Vec<u8>, place: usize, new: &[u8]) {
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
    let end = if random.below(2) == 0 {
        place
    } else {
        place + bytes[place..].iter().take_while(|byte| part(byte)).count()
    };
    bytes.splice(place..end, new.iter().copied());
}

fn swap_line(random: &mut Random, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
    let Some(other) = random.pick(inputs) else { return };
    let lines: Vec<&[u8]> = other.split_inclusive(|byte| *byte == b'\n').collect();
    let Some(line) = random.pick(&lines).map(|line| line.to_vec()) else { return };
    let ends: Vec<usize> = std::iter::once(0)
        .chain(bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(place, _)| place + 1))
        .collect();
    let which = random.below(ends.len());
    let end =
        if random.below(2) == 0 { ends[which] } else { ends.get(which + 1).copied().unwrap_or(bytes.len()) };
    bytes.splice(ends[which]..end, line);
}
