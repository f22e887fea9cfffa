//! Where a picture is from: a file of its own, a part of a tar shard, a row of a .parquet file; or it is drawn.

use std::{
    fmt,
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
};

use ringtune_shared::manifest::LARGEST_IMAGE_FILE;
use ringtune_tables::pictures::PictureTable;

use super::Error;
use crate::access::ConfinedPath;

/// Where a picture lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImagePlace {
    /// In a file.
    File(ConfinedPath),
    /// Within one.
    Part {
        /// The file, whose pictures share this.
        file: Arc<ConfinedPath>,
        /// Where it begins.
        offset: u64,
        /// Bytes, at most [`LARGEST_IMAGE_FILE`].
        length: u64,
    },
    /// In a .parquet file.
    Row {
        /// The file, whose pictures share this.
        file: Arc<ConfinedPath>,
        /// From 0.
        row: u64,
    },
    /// Nowhere: noise, drawn by these.
    Drawn {
        /// The job's.
        seed: u64,
        /// Among the job's samples.
        number: u32,
    },
}

/// The .parquet file that a picture was read in last: pictures that follow each other are found without reading anything twice.
#[derive(Default)]
pub struct OpenTable(Option<(Arc<ConfinedPath>, PictureTable)>);

impl From<ConfinedPath> for ImagePlace {
    fn from(path: ConfinedPath) -> Self {
        Self::File(path)
    }
}

impl ImagePlace {
    /// The file, for messages.
    pub fn shown(&self) -> &Path {
        match self {
            Self::File(path) => path.shown(),
            Self::Part { file, .. } | Self::Row { file, .. } => file.shown(),
            Self::Drawn { .. } => Path::new("synthetic"),
        }
    }

    /// The picture's bytes. `name`: for messages. Blocks.
    ///
    /// # Errors
    /// It cannot be read, is larger than [`LARGEST_IMAGE_FILE`], or is not there any more.
    pub(super) fn read(&self, name: &str, open: &mut OpenTable) -> Result<Vec<u8>, Error> {
        let failed = |source| Error::ReadImage { name: name.to_owned(), source };
        match self {
            Self::File(path) => whole(path, name),
            Self::Part { file, offset, length } => {
                let mut content = vec![0; usize::try_from(*length).unwrap_or(usize::MAX)];
                match file.open().and_then(|file| file.read_exact_at(&mut content, *offset)) {
                    Ok(()) => Ok(content),
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        Err(Error::ImageChanged { name: name.to_owned() })
                    }
                    Err(error) => Err(failed(error)),
                }
            }
            Self::Row { file, row } => {
                let table = open.of(file)?;
                table.picture(*row).map_err(|problem| in_file(file, problem))
            }
            Self::Drawn { .. } => Ok(Vec::new()),
        }
    }
}

impl OpenTable {
    /// Opens a file, unless it is open.
    pub(crate) fn of(&mut self, file: &Arc<ConfinedPath>) -> Result<&mut PictureTable, Error> {
        let table = match self.0.take().filter(|(open, _)| Arc::ptr_eq(open, file)) {
            Some((_, table)) => table,
            None => {
                let opened = file.open().and_then(PictureTable::open);
                let opened =
                    opened.map_err(|source| Error::ReadFile { file: file.shown().to_owned(), source })?;
                opened.map_err(|problem| in_file(file, problem))?
            }
        };
        Ok(&mut self.0.insert((Arc::clone(file), table)).1)
    }
}

impl fmt::Debug for OpenTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("OpenTable").field(&self.0.as_ref().map(|(file, _)| file.shown())).finish()
    }
}

/// What is wrong within a file of pictures.
pub(crate) fn in_file(file: &ConfinedPath, problem: String) -> Error {
    Error::UnusableFile { file: file.shown().to_owned(), problem }
}

fn whole(path: &ConfinedPath, name: &str) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::ReadImage { name: name.to_owned(), source };
    let check = |bytes: u64| match bytes {
        0..=LARGEST_IMAGE_FILE => Ok(()),
        _ => Err(Error::ImageTooLarge { name: name.to_owned(), bytes, allowed: LARGEST_IMAGE_FILE }),
    };
    let file = path.open().map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    check(length)?;
    // One byte more: a file that has grown since is refused as too large.
    let mut content = Vec::with_capacity(length as usize + 1);
    file.take(LARGEST_IMAGE_FILE + 1).read_to_end(&mut content).map_err(failed)?;
    check(content.len() as u64)?;
    Ok(content)
}
