//! The captions of a folder's pictures: a metadata file, as Hugging Face's imagefolder has it, or a text file beside each
//! picture. They are read in the same way before an upload, by a worker that sees the folder, and in a dry run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, ErrorKind, Read as _},
    path::Path,
};

use ringtune_shared::{
    captions::{CaptionError, LARGEST_CAPTION_FILE, read_caption},
    files::is_image_name,
};

pub use crate::error::{CaptionFileError, CaptionFileProblem};
use crate::metadata;

/// Opens a file of the folder by its name.
type Open<'a> = &'a dyn Fn(&str) -> io::Result<File>;

/// Where a folder has its captions.
pub struct FolderCaptions<'a> {
    folder: &'a Path,
    open: Open<'a>,
    /// The metadata file, and what it says of each picture that it names.
    metadata: Option<(&'static str, BTreeMap<String, Vec<String>>)>,
}

impl<'a> FolderCaptions<'a> {
    /// Reads the metadata file of `folder`, if there is one. `pictures`: all that are there. `column`: of the captions; empty:
    /// "text". `open` waits for nobody.
    ///
    /// # Errors
    /// It cannot be used, or there are two.
    pub fn new<'p>(
        folder: &'a Path,
        pictures: impl Iterator<Item = &'p str>,
        column: &str,
        open: Open<'a>,
    ) -> Result<Self, CaptionFileError> {
        let pictures: BTreeSet<&str> = pictures.collect();
        let mut found: Option<(&str, _)> = None;
        for name in metadata::NAMES {
            let at = |problem| CaptionFileError { path: folder.join(name), problem };
            let Some(file) = there(open(name)).map_err(|error| at(error.into()))? else { continue };
            if let Some((other, _)) = &found {
                let problem = format!("there is {other} too; keep one of the two");
                return Err(at(CaptionFileProblem::Wrong(problem)));
            }
            let column = if column.is_empty() { "text" } else { column };
            found = Some((name, metadata::read(name, file, &pictures, column).map_err(at)?));
        }
        Ok(Self { folder, open, metadata: found })
    }

    /// The captions of a picture; empty where it has none.
    ///
    /// # Errors
    /// A file beside it cannot be read, holds no caption, or another one than there is elsewhere.
    pub fn of(&self, picture: &str) -> Result<Vec<String>, CaptionFileError> {
        let listed = self.metadata.as_ref().and_then(|(name, of)| Some((*name, of.get(picture)?.clone())));
        let mut found = listed.map(|(name, captions)| (name.to_owned(), captions));
        for name in caption_files(picture) {
            let path = self.folder.join(&name);
            let read = caption_in((self.open)(&name));
            let read = read.and_then(|caption| match (caption, &found) {
                (Some(caption), Some((other, captions)))
                    if !captions.is_empty() && *captions != [caption.as_str()] =>
                {
                    let problem = format!("{other} has another caption for {picture:?}; keep one of the two");
                    Err(CaptionFileProblem::Wrong(problem))
                }
                (caption, _) => Ok(caption),
            });
            if let Some(caption) = read.map_err(|problem| CaptionFileError { path, problem })? {
                found = Some((name, vec![caption]));
            }
        }
        Ok(found.map(|(_, captions)| captions).unwrap_or_default())
    }
}

/// The names that files with captions of these pictures have.
pub fn caption_file_names<'p>(pictures: impl Iterator<Item = &'p str>) -> BTreeSet<String> {
    pictures.flat_map(caption_files).chain(metadata::NAMES.map(str::to_owned)).collect()
}

/// Opens a regular file: a pipe would keep its reader waiting.
///
/// # Errors
/// It is none, or cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path)
}

/// The files beside a picture: `a.b.txt`, as most tools write it, and kohya's `a.b.caption`, for `a.b.png`.
fn caption_files(picture: &str) -> impl Iterator<Item = String> {
    let stem = picture.rsplit_once('.').filter(|_| is_image_name(picture)).map(|(stem, _)| stem.to_owned());
    stem.into_iter().flat_map(|stem| ["txt", "caption"].map(|ending| format!("{stem}.{ending}")))
}

fn there(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// The caption in a file beside a picture; none where there is no such file, or nothing in it.
fn caption_in(opened: io::Result<File>) -> Result<Option<String>, CaptionFileProblem> {
    let Some(file) = there(opened)? else { return Ok(None) };
    let length = file.metadata()?.len();
    if length > LARGEST_CAPTION_FILE {
        return Err(CaptionError::TooLong(usize::try_from(length).unwrap_or(usize::MAX)).into());
    }
    let mut bytes = Vec::new();
    // One byte more: a file that has grown since is refused as too long.
    file.take(LARGEST_CAPTION_FILE + 1).read_to_end(&mut bytes)?;
    Ok(read_caption(&bytes)?)
}
