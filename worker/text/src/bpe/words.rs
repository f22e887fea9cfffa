//! Cuts a text into the words that tokens never cross.
//!
//! What is cut is what this regular expression of GPT-2 finds, one match after the other (they leave nothing out):
//!
//! ```text
//! 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//! ```
//!
//! Source: OpenAI's `encoder.py`; tiktoken's `r50k_base` finds the same.

use regex_syntax::hir::{Class as HirClass, HirKind};

use crate::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Class {
    /// `[^\s\p{L}\p{N}]`.
    Other,
    /// `\s`.
    Blank,
    /// `\p{L}`.
    Letter,
    /// `\p{N}`.
    Number,
}

const CONTRACTIONS: [&[u8]; 7] = [b"'s", b"'t", b"'re", b"'ve", b"'m", b"'ll", b"'d"];

/// The class of each letter of Unicode: 1.1 MB.
#[derive(Debug)]
pub(super) struct Classes {
    by_code: Box<[Class]>,
}

impl Classes {
    /// From the tables of regular expressions, which tiktoken's words are found with.
    pub(super) fn new() -> Result<Self, Error> {
        let mut by_code = vec![Class::Other; char::MAX as usize + 1].into_boxed_slice();
        let blanks = ('\0'..=char::MAX).filter(|letter| letter.is_whitespace());
        blanks.for_each(|letter| by_code[letter as usize] = Class::Blank);
        for (property, class) in [(r"\p{L}", Class::Letter), (r"\p{N}", Class::Number)] {
            let parsed = regex_syntax::parse(property).map_err(|error| Error::Internal(error.to_string()))?;
            let HirKind::Class(HirClass::Unicode(found)) = parsed.kind() else {
                return Err(Error::Internal(format!("{property} is no class of letters")));
            };
            for range in found.ranges() {
                by_code[range.start() as usize..=range.end() as usize].fill(class);
            }
        }
        Ok(Self { by_code })
    }

    /// The words of a text, in order; together they are the text.
    pub(super) fn words<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let (word, after) = rest.split_at_checked(self.first(rest)?)?;
            rest = after;
            Some(word)
        })
    }

    /// The bytes of the first word; none of an empty text.
    fn first(&self, text: &str) -> Option<usize> {
        let bytes = text.as_bytes();
        if *bytes.first()? == b'\''
            && let Some(found) = CONTRACTIONS.iter().find(|contraction| bytes.starts_with(contraction))
        {
            return Some(found.len());
        }
        let start = usize::from(bytes.first() == Some(&b' '));
        match self.at(text, start) {
            Some((class, length)) if class != Class::Blank => {
                Some(self.end_of_run(text, start + length, class))
            }
            _ => Some(self.blanks(text)),
        }
    }

    /// Blanks up to the end of the text; before a word all but the last, which may belong to it, unless it is the only one.
    fn blanks(&self, text: &str) -> usize {
        let (mut last, mut end) = (0, 0);
        while let Some((Class::Blank, length)) = self.at(text, end) {
            (last, end) = (end, end + length);
        }
        if end < text.len() && last > 0 { last } else { end }
    }

    fn end_of_run(&self, text: &str, start: usize, class: Class) -> usize {
        let mut end = start;
        while let Some((found, length)) = self.at(text, end)
            && found == class
        {
            end += length;
        }
        end
    }

    /// The class of the letter that begins at byte `place`, and its length.
    #[inline]
    fn at(&self, text: &str, place: usize) -> Option<(Class, usize)> {
        let byte = *text.as_bytes().get(place)?;
        if byte.is_ascii() {
            return Some((self.by_code[usize::from(byte)], 1));
        }
        let letter = text.get(place..)?.chars().next()?;
        Some((self.by_code[letter as usize], letter.len_utf8()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        Classes::new().unwrap().words(text).map(str::to_owned).collect()
    }

    /// As `regex.findall(pattern, text)` of Python's crate `regex` gives.
    #[test]
    fn texts_are_cut_as_by_the_expression() {
        let cases: [(&str, &[&str]); 16] = [
            ("", &[]),
            (" ", &[" "]),
            ("  ", &["  "]),
            ("  a", &[" ", " a"]),
            ("a  b", &["a", " ", " b"]),
            ("a \n\n b", &["a", " \n\n", " b"]),
            ("\n\nfoo", &["\n", "\n", "foo"]),
            ("\nfoo", &["\n", "foo"]),
            ("it's we'll I'D 'tis", &["it", "'s", " we", "'ll", " I", "'", "D", " '", "tis"]),
            ("'''s", &["'''", "s"]),
            (" 's", &[" '", "s"]),
            ("x=1,234.5%", &["x", "=", "1", ",", "234", ".", "5", "%"]),
            ("naïve Ⅷ ½日本", &["naïve", " Ⅷ", " ½", "日本"]),
            ("a\u{300}b", &["a", "\u{300}", "b"]),
            ("<|endoftext|>", &["<|", "endoftext", "|>"]),
            ("\u{a0}\u{3000}x\u{1f600}\u{200d} \t", &["\u{a0}", "\u{3000}", "x", "\u{1f600}\u{200d}", " \t"]),
        ];
        for (text, expected) in cases {
            assert_eq!(words(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn the_words_are_the_text(text in any::<String>()) {
            prop_assert_eq!(words(&text).concat(), text);
        }
    }
}
