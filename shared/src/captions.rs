//! Captions: what a file in its folder says about a picture (`shared/tables` finds them).

/// Bytes of a caption.
pub const LONGEST_CAPTION: usize = 4 << 10;
/// Bytes of a caption file: a mark of its encoding, blanks and line ends may stand around the caption.
pub const LARGEST_CAPTION_FILE: u64 = 2 * LONGEST_CAPTION as u64;

/// Captions of one picture, one of which a sample shows: the sets that have several have some five.
pub const MOST_CAPTIONS: usize = 64;

/// A caption that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptionError {
    /// It is not text.
    #[error("it is not UTF-8 text")]
    Encoding,
    /// It is too long.
    #[error("it has {0} bytes; allowed: at most {LONGEST_CAPTION}")]
    TooLong(usize),
    /// The picture has too many.
    #[error("the picture has {0} captions; allowed: at most {MOST_CAPTIONS}")]
    TooMany(usize),
    /// A caption in a manifest is not as [`read_caption`] makes it.
    #[error("{0:?} is empty, begins or ends with a blank, or has control characters in it")]
    Form(String),
}

/// The caption that a file's bytes hold, on one line: line ends and other control characters become blanks, blanks
/// around it go. None where nothing is left.
///
/// # Errors
/// The bytes are not UTF-8, or the caption is too long.
pub fn read_caption(bytes: &[u8]) -> Result<Option<String>, CaptionError> {
    if bytes.len() as u64 > LARGEST_CAPTION_FILE {
        return Err(CaptionError::TooLong(bytes.len()));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| CaptionError::Encoding)?;
    // Editors on Windows begin a file with it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", " ");
    let line: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let caption = line.trim();
    match caption.len() {
        0 => Ok(None),
        1..=LONGEST_CAPTION => Ok(Some(caption.to_owned())),
        length => Err(CaptionError::TooLong(length)),
    }
}

/// Checks a caption that [`read_caption`] may have made.
///
/// # Errors
/// It cannot have.
pub fn check_caption(caption: &str) -> Result<(), CaptionError> {
    if caption.len() > LONGEST_CAPTION {
        return Err(CaptionError::TooLong(caption.len()));
    }
    if caption.is_empty() || caption.trim() != caption || caption.chars().any(char::is_control) {
        return Err(CaptionError::Form(caption.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_caption_is_one_line_without_blanks_around_it() {
        let read = |bytes: &[u8]| read_caption(bytes).unwrap();
        assert_eq!(read(b"\xef\xbb\xbf  a cat,\r\nred \n\n").as_deref(), Some("a cat, red"));
        assert_eq!(read("d\u{e9}j\u{e0}\tvu".as_bytes()).as_deref(), Some("d\u{e9}j\u{e0} vu"));
        assert_eq!(read(b" \n"), None);
        assert_eq!(read(b""), None);
        assert_eq!(read_caption(b"caf\xe9"), Err(CaptionError::Encoding));
        assert_eq!(read(&vec![b'x'; LONGEST_CAPTION]).map(|caption| caption.len()), Some(LONGEST_CAPTION));
        let long = vec![b'x'; LONGEST_CAPTION + 1];
        assert_eq!(read_caption(&long), Err(CaptionError::TooLong(long.len())));
        let padded = vec![b' '; LARGEST_CAPTION_FILE as usize + 1];
        assert_eq!(read_caption(&padded), Err(CaptionError::TooLong(padded.len())));
    }

    #[test]
    fn captions_that_no_file_gives_are_refused() {
        for wrong in ["", " a", "a\n", "a\nb", "a\u{7f}"] {
            assert_eq!(check_caption(wrong), Err(CaptionError::Form(wrong.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_right_and_stays_the_same(bytes in any::<Vec<u8>>(), text in "\\PC{0,40}[\\n\\t ]{0,3}\\PC{0,9}") {
            for bytes in [bytes.as_slice(), text.as_bytes()] {
                if let Ok(Some(caption)) = read_caption(bytes) {
                    prop_assert_eq!(check_caption(&caption), Ok(()));
                    prop_assert_eq!(read_caption(caption.as_bytes()), Ok(Some(caption.clone())));
                }
            }
        }
    }
}
