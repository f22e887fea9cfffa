//! What a browser does with a file: it shows pictures and saves all else, whatever the file says that it is.

use http::HeaderValue;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use ringtune_shared::names;

/// RFC 8187: these stay as they are.
const STAYS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Characters of a name that a browser is told.
const LONGEST_NAME: usize = 200;

/// How many of the first bytes decide.
pub(super) const DECIDING: usize = 12;

/// A picture's type, by its first bytes.
pub(super) fn picture(first: &[u8]) -> Option<&'static str> {
    if first.starts_with(b"\x89PNG\r\n\x1a\n") {
        Some("image/png")
    } else if first.starts_with(b"\xff\xd8\xff") {
        Some("image/jpeg")
    } else if first.starts_with(b"RIFF") && first.get(8..12) == Some(b"WEBP") {
        Some("image/webp")
    } else {
        None
    }
}

/// Has a browser save a file under its name: one of ASCII for old programs, and the whole one.
pub(super) fn attachment(name: &str) -> HeaderValue {
    let mut name: String =
        name.chars().filter(|letter| !names::is_hidden(*letter)).take(LONGEST_NAME).collect();
    // Of an earlier release: no setting, and no option of a command.
    if name.starts_with(['.', '-']) {
        name.insert(0, '_');
    }
    let plain = |letter: char| letter.is_ascii_alphanumeric() || " -._()+@".contains(letter);
    let ascii: String = name.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect();
    let whole = utf8_percent_encode(&name, STAYS);
    let text = format!("attachment; filename=\"{ascii}\"; filename*=UTF-8''{whole}");
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bytes_of_a_picture_make_it_one() {
        assert_eq!(picture(b"\x89PNG\r\n\x1a\n...."), Some("image/png"));
        assert_eq!(picture(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(picture(b"RIFF\0\0\0\0WEBPVP8 "), Some("image/webp"));
        for other in [&b""[..], b"\x89PN", b"RIFF\0\0\0\0WAVE", b"RIFF", b"<svg>", b"GIF89a", b"<html>"] {
            assert_eq!(picture(other), None);
        }
    }

    #[test]
    fn a_name_cannot_break_out_of_its_header() {
        let of = |name: &str| attachment(name).to_str().unwrap().to_owned();
        assert_eq!(of("a b.png"), "attachment; filename=\"a b.png\"; filename*=UTF-8''a%20b.png");
        assert_eq!(of("\"; x=\\"), "attachment; filename=\"__ x__\"; filename*=UTF-8''%22%3B%20x%3D%5C");
        assert_eq!(
            of("a\r\nSet-Cookie: x"),
            "attachment; filename=\"aSet-Cookie_ x\"; filename*=UTF-8''aSet-Cookie%3A%20x"
        );
        assert_eq!(of("bär😀"), "attachment; filename=\"b_r_\"; filename*=UTF-8''b%C3%A4r%F0%9F%98%80");
        assert_eq!(of("\u{202e}gpj.exe"), "attachment; filename=\"gpj.exe\"; filename*=UTF-8''gpj.exe");
        assert_eq!(of(".bashrc"), "attachment; filename=\"_.bashrc\"; filename*=UTF-8''_.bashrc");
        assert!(of(&"ä".repeat(10_000)).len() < 2000);
    }
}
