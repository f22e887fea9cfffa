//! Texts that users gave, looked at and shown.

pub(super) fn printable(text: &str, limit: usize) -> Result<(), String> {
    let length = text.chars().count();
    if length > limit {
        return Err(format!("got {length} characters ({:?}); allowed: at most {limit}", shortened(text)));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("got {:?}; allowed: no control characters", shortened(text)));
    }
    Ok(())
}

/// The scheme of a URI: letters, digits, `+`, `-`, `.` before `://`.
pub(super) fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter));
    is_scheme.then_some(scheme)
}

/// For messages: a text as it is, or the beginning of a long one.
pub(super) fn shortened(text: &str) -> String {
    const LONGEST: usize = 80;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST).chain(['…']).collect()
}

/// For what makes a job too large.
pub(super) fn text_bytes(texts: &[String]) -> usize {
    texts.iter().map(String::len).sum()
}
