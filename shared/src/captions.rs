//! Captions: what a text file beside a picture says about it.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::files::is_image_name;

/// Bytes of a caption.
pub const LONGEST_CAPTION: usize = 4 << 10;
/// Bytes of a caption file: a mark of its encoding, blanks and line ends may stand around the caption.
pub const LARGEST_CAPTION_FILE: u64 = 2 * LONGEST_CAPTION as u64;

/// A caption that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptionError {
    /// It is not text.
    #[error("it is not UTF-8 text")]
    Encoding,
    /// It is too long.
    #[error("it has {0} bytes; allowed: at most {LONGEST_CAPTION}")]
    TooLong(usize),
    /// A caption in a manifest is not as [`read_caption`] makes it.
    #[error("{0:?} is empty, begins or ends with a blank, or has control characters in it")]
    Form(String),
}

/// A caption file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the caption file {}: {problem}", path.display())]
pub struct CaptionFileError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub problem: CaptionFileProblem,
}

/// See [`CaptionFileError`].
#[derive(Debug, thiserror::Error)]
pub enum CaptionFileProblem {
    /// It cannot be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    /// Its text is not a caption.
    #[error(transparent)]
    Caption(#[from] CaptionError),
}

/// The caption of the picture `image` in `folder`, from the file beside it; none where there is no such file.
///
/// # Errors
/// The file cannot be read, or holds no caption.
pub fn caption_beside(folder: &Path, image: &str) -> Result<Option<String>, CaptionFileError> {
    let Some(name) = caption_file_name(image) else { return Ok(None) };
    let path = folder.join(name);
    let open = || match fs::metadata(&path) {
        // A pipe would keep its reader waiting.
        Ok(about) if !about.is_file() => Err(io::Error::other("it is not a regular file")),
        Ok(_) => File::open(&path),
        Err(error) => Err(error),
    };
    caption_in(&path, open())
}

/// The caption in a caption file, as it was opened; none where there is no such file. `path`: for messages.
///
/// # Errors
/// The file cannot be read, or holds no caption.
pub fn caption_in(path: &Path, opened: io::Result<File>) -> Result<Option<String>, CaptionFileError> {
    let read = || -> Result<Option<String>, CaptionFileProblem> {
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let length = file.metadata()?.len();
        if length > LARGEST_CAPTION_FILE {
            return Err(CaptionError::TooLong(usize::try_from(length).unwrap_or(usize::MAX)).into());
        }
        let mut bytes = Vec::new();
        // One byte more: a file that has grown since is refused as too long.
        file.take(LARGEST_CAPTION_FILE + 1).read_to_end(&mut bytes)?;
        Ok(read_caption(&bytes)?)
    };
    read().map_err(|problem| CaptionFileError { path: path.to_owned(), problem })
}

/// The name of a picture's caption file: `a.b.txt` for `a.b.png`; none where the name is not a picture's.
pub fn caption_file_name(image: &str) -> Option<String> {
    let (stem, _) = image.rsplit_once('.').filter(|_| is_image_name(image))?;
    Some(format!("{stem}.txt"))
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
    fn a_caption_stands_beside_its_picture() {
        assert_eq!(caption_file_name("a.png").as_deref(), Some("a.txt"));
        assert_eq!(caption_file_name("a.b.JPG").as_deref(), Some("a.b.txt"));
        assert_eq!(caption_file_name("a.txt"), None);
        assert_eq!(caption_file_name(".png"), None);
    }

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
    fn a_wrong_caption_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(caption_beside(folder.path(), "a.png").unwrap(), None);
        fs::write(folder.path().join("a.txt"), "a cat\n").unwrap();
        assert_eq!(caption_beside(folder.path(), "a.png").unwrap().as_deref(), Some("a cat"));
        fs::write(folder.path().join("a.txt"), b"\xff").unwrap();
        assert!(caption_beside(folder.path(), "a.png").unwrap_err().to_string().contains("a.txt"));
        fs::File::create(folder.path().join("a.txt")).unwrap().set_len(1 << 40).unwrap();
        assert!(caption_beside(folder.path(), "a.png").unwrap_err().to_string().contains("a.txt"));
        fs::create_dir(folder.path().join("b.txt")).unwrap();
        assert!(caption_beside(folder.path(), "b.png").is_err());
        // A pipe, whose reader would wait, is not opened.
        std::os::unix::net::UnixListener::bind(folder.path().join("c.txt")).unwrap();
        let refused = caption_beside(folder.path(), "c.png").unwrap_err().to_string();
        assert!(refused.contains("c.txt") && refused.contains("regular file"), "{refused}");
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
