//! Rules for names from outside: of a job, an owner, a file, a host, a token. Such a name is shown on terminals and on the
//! page, and may become a file's or a header's.
//!
//! Every name is checked by [`check`] where it comes in. What was kept by an earlier release, and texts that are no names, are shown
//! by [`visible`].

use std::borrow::Cow;

/// Characters that no name may have: invisible ones, and those that turn or move the text around them. U+200C and U+200D, which scripts and
/// emoji need, may be.
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{061c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Refuses a text that is no name for people: of at most so many characters, all of which can be seen.
///
/// # Errors
/// What is wrong with it and what is allowed.
pub fn check(text: &str, longest: usize) -> Result<(), String> {
    let length = text.chars().count();
    if length > longest {
        return Err(format!("{length} characters; allowed: at most {longest}"));
    }
    match hidden(text) {
        Some(letter) => Err(format!("has {}; allowed: printable characters", described(letter))),
        None => Ok(()),
    }
}

/// The first character that no name may have.
pub fn hidden(text: &str) -> Option<char> {
    text.chars().find(|letter| is_hidden(*letter))
}

/// For messages: what such a character is.
pub fn described(letter: char) -> String {
    match letter.is_control() {
        true => format!("the control character {letter:?}"),
        false => format!("U+{:04X}, which is not seen or turns what follows", u32::from(letter)),
    }
}

/// A text of others on a terminal, with what cannot be seen by its number, as the page shows it: `‹U+202E›`. Lines and tabs stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    let is_bad = |letter: char| is_hidden(letter) && !"\n\t".contains(letter);
    if !text.contains(is_bad) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_bad(letter) {
            true => shown.push_str(&format!("‹U+{:04X}›", u32::from(letter))),
            false => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_languages_are_names() {
        for right in ["", "green star", "Müller", "星", "می‌خواهم", "👩‍🔬", "❤️", "-", "a: <b>"]
        {
            assert_eq!(check(right, 100), Ok(()), "{right}");
        }
        assert_eq!(check("äöü", 2).unwrap_err(), "3 characters; allowed: at most 2");
    }

    #[test]
    fn what_hides_or_turns_text_is_in_no_name_and_is_shown_by_its_number() {
        for wrong in [
            '\u{1b}',
            '\r',
            '\n',
            '\u{85}',
            '\u{202e}',
            '\u{2066}',
            '\u{200f}',
            '\u{200b}',
            '\u{feff}',
            '\u{e0041}',
        ] {
            assert_eq!(hidden(&format!("a{wrong}b")), Some(wrong));
            assert!(
                check(&format!("a{wrong}b"), 100).unwrap_err().ends_with("; allowed: printable characters")
            );
        }
        assert_eq!(check("\u{202e}gpj.exe", 9).unwrap_err().split(',').next(), Some("has U+202E"));
        assert_eq!(visible("\u{202e}gpj.exe\u{1b}[2J"), "‹U+202E›gpj.exe‹U+001B›[2J");
        assert!(matches!(visible("a\tb\nć"), Cow::Borrowed("a\tb\nć")));
    }
}
