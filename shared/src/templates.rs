//! Prompt templates: where the learned word goes, and the picture's caption.

use std::fmt;

/// Placeholders of the learned word, in diffusers and in AUTOMATIC1111's template files.
pub const NAME_MARKS: [&str; 2] = ["{}", "[name]"];
/// Placeholders of the picture's caption; the second is AUTOMATIC1111's.
pub const CAPTION_MARKS: [&str; 2] = ["[caption]", "[filewords]"];

/// A prompt with holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Name,
    Caption,
}

/// The text is not a template. Its message says what is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotATemplate;

impl fmt::Display for NotATemplate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(
            "a prompt with exactly one {} or [name] for the token (or none, where every caption holds the token), \
             at most one [caption] or [filewords] for the picture's caption, and no other brace or square bracket",
        )
    }
}

impl Template {
    /// Reads a template. A brace or a bracket that is not a mark is refused: Python's `format` would fail at the one,
    /// and the other is a mistyped mark.
    pub fn parse(text: &str) -> Result<Self, NotATemplate> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find(['{', '}', '[', ']']) {
            let (before, from_mark) = rest.split_at(start);
            let known =
                |marks: &[&'static str]| marks.iter().find(|mark| from_mark.starts_with(**mark)).copied();
            let (mark, piece) = match (known(&NAME_MARKS), known(&CAPTION_MARKS)) {
                (Some(mark), _) => (mark, Piece::Name),
                (None, Some(mark)) => (mark, Piece::Caption),
                (None, None) => return Err(NotATemplate),
            };
            pieces.extend([Piece::Text(before.to_owned()), piece]);
            rest = &from_mark[mark.len()..];
        }
        pieces.push(Piece::Text(rest.to_owned()));
        let template = Self { pieces };
        match (template.count(&Piece::Name), template.count(&Piece::Caption)) {
            (1, 0 | 1) | (0, 1) => Ok(template),
            _ => Err(NotATemplate),
        }
    }

    /// Whether it says where the learned word goes.
    pub fn has_name(&self) -> bool {
        self.count(&Piece::Name) > 0
    }

    /// Whether it asks for the picture's caption.
    pub fn has_caption(&self) -> bool {
        self.count(&Piece::Caption) > 0
    }

    /// The prompt.
    pub fn fill(&self, name: &str, caption: &str) -> String {
        let text = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Name => name.to_owned(),
            Piece::Caption => caption.to_owned(),
        };
        self.pieces.iter().map(text).collect()
    }

    fn count(&self, piece: &Piece) -> usize {
        self.pieces.iter().filter(|other| *other == piece).count()
    }
}

/// Whether one of these templates asks for captions. Texts that are no templates ask for nothing.
pub fn use_captions<T: AsRef<str>>(templates: &[T]) -> bool {
    templates.iter().any(|template| Template::parse(template.as_ref()).is_ok_and(|read| read.has_caption()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn marks_of_both_tools_are_filled_in() {
        let fill = |text: &str| Template::parse(text).map(|template| template.fill("<x>", "red, round"));
        assert_eq!(fill("a photo of {}").as_deref(), Ok("a photo of <x>"));
        assert_eq!(fill("a photo of [name], [filewords]").as_deref(), Ok("a photo of <x>, red, round"));
        assert_eq!(fill("[caption] by {}!").as_deref(), Ok("red, round by <x>!"));
        assert_eq!(fill("[caption]").as_deref(), Ok("red, round"));
        let kinds =
            |text: &str| Template::parse(text).map(|template| (template.has_name(), template.has_caption()));
        assert_eq!(kinds("{}"), Ok((true, false)));
        assert_eq!(kinds("[filewords]"), Ok((false, true)));
        assert_eq!(kinds("[name] [caption]"), Ok((true, true)));
    }

    #[test]
    fn other_braces_and_brackets_are_refused() {
        for wrong in [
            "",
            "a photo",
            "{} and {}",
            "{} [name]",
            "[caption] {} [filewords]",
            "[captoin] {}",
            "{name}",
            "{ }",
            "[Name]",
            "{} [soft]",
            "]{}",
            "[[name]]",
            "{{}}",
        ] {
            assert_eq!(Template::parse(wrong), Err(NotATemplate), "{wrong:?}");
        }
        assert!(use_captions(&["{}", "[name] [caption]"]));
        assert!(!use_captions(&["{}", "a [caption] {} {}"]));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a {}\\[\\]é]{0,9}(\\[name\\]|\\{\\}|\\[caption\\])?[a {}\\[\\]]{0,5}") {
            if let Ok(template) = Template::parse(&text) {
                let filled = template.fill("{}", "[caption]");
                prop_assert!(filled.len() + 5 >= text.len());
                prop_assert!(template.has_name() || template.has_caption());
            }
        }
    }
}
