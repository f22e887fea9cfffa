//! Sources of documents: finding files ([`find`]), cutting them into parts ([`plan`]), and how a part is
//! read ([`read`]).

mod lines;
mod plan;
mod scan;
mod sink;
mod tables;
#[cfg(test)]
mod tables_tests;
mod texts;

use std::{
    fs::File,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};

pub use scan::ENDINGS;

pub(crate) use plan::{Part, plan};
pub(crate) use scan::{Found, find};
pub(crate) use sink::{Broken, Sink};

use crate::Error;

/// A file or a folder that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its path.
    pub path: PathBuf,
    /// Its name for users.
    pub name: String,
}

impl Input {
    /// A file of this machine.
    pub fn local(path: &Path) -> Self {
        Self { path: path.to_owned(), name: path.display().to_string() }
    }
}

/// A file of documents.
#[derive(Clone, Debug)]
pub(crate) struct InputFile {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) identity: Identity,
}

/// Format of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The file is a document.
    Text,
    /// Each line is a JSON object that has one.
    Lines,
    /// Each row has one.
    Table(Vec<RowGroup>),
}

/// Facts of a row group of a .parquet file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowGroup {
    pub(crate) rows: u64,
    /// Of the column of texts, not compressed.
    pub(crate) bytes: u64,
}

/// Identifies an unchanged file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// As users know it.
    pub(crate) name: String,
    /// Bytes.
    pub(crate) size: u64,
    /// Nanoseconds of the Unix clock.
    pub(crate) modified: u64,
}

impl Identity {
    /// Of a file as it is now. Blocks.
    pub(crate) fn of(path: &Path, name: &str) -> Result<Self, Error> {
        let about = std::fs::metadata(path).map_err(Error::io("read", path))?;
        let modified = about.modified().map_err(Error::io("read", path))?;
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        let modified = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        Ok(Self { name: name.to_owned(), size: about.len(), modified })
    }
}

impl InputFile {
    fn open(&self) -> Result<File, Error> {
        File::open(&self.path).map_err(Error::io("read", &self.path))
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        let now = Identity::of(&self.path, &self.identity.name)?;
        if now == self.identity {
            return Ok(());
        }
        let Identity { size, .. } = self.identity;
        let problem =
            format!("was changed while it was read ({size} bytes before, {} now); start again", now.size);
        Err(Error::unusable(Path::new(&self.identity.name), problem))
    }
}

/// Reads the documents of a part, in order, into `sink`. Blocks.
///
/// # Errors
/// The sink's, those of files, and that a file was changed meanwhile.
pub(crate) fn read(
    sources: &[InputFile],
    part: &Part,
    column: &str,
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    let files = sources.get(part.sources()).unwrap_or_default();
    match part {
        Part::Texts(_) => files.iter().try_for_each(|source| texts::read(source, sink))?,
        Part::Lines { bytes, .. } => {
            files.iter().try_for_each(|source| lines::read(source, bytes.clone(), column, sink))?;
        }
        Part::Groups { groups, .. } => {
            files.iter().try_for_each(|source| tables::read(source, groups.clone(), column, sink))?;
        }
    }
    files.iter().try_for_each(InputFile::check_unchanged)
}

/// Reads all documents of a file as `prepare-text` would, and says how many there are: for whoever wants to know whether it
/// could. Blocks.
///
/// # Errors
/// What is wrong with the file, or with the first document that cannot be read.
pub fn count_documents(path: &Path, column: &str) -> Result<u64, Error> {
    let sources = find(&[Input::local(path)], column)?.sources;
    let mut counted = Counted(0);
    plan(&sources).iter().try_for_each(|part| read(&sources, part, column, &mut counted))?;
    Ok(counted.0)
}

struct Counted(u64);

impl Sink for Counted {
    fn document(&mut self, _: &str) -> Result<(), Error> {
        self.0 += 1;
        Ok(())
    }

    fn broken(&mut self, broken: Broken) -> Result<(), Error> {
        Err(Error::Document { place: broken.place.text(), problem: broken.problem })
    }

    fn advance(&mut self, _: u64) {}
}
