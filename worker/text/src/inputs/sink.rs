//! Sinks of documents, and reports of broken ones.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    path::PathBuf,
};

use crate::Error;

/// Takes the documents of a part.
pub(crate) trait Sink {
    /// The next one.
    fn document(&mut self, text: &str) -> Result<(), Error>;

    /// Takes a broken document. An error ends the part.
    fn broken(&mut self, broken: Broken) -> Result<(), Error>;

    /// Adds to the bytes of the inputs that have been read.
    fn advance(&mut self, bytes: u64);
}

/// A document that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    pub(crate) place: DocumentPlace,
    pub(crate) problem: String,
}

/// Place of a document.
#[derive(Clone, Debug)]
pub(crate) enum DocumentPlace {
    /// The whole file of this name.
    File(String),
    /// The line that begins at byte `start`.
    Line { path: PathBuf, name: String, start: u64 },
    /// A row, from 1.
    Row { name: String, row: u64 },
}

impl DocumentPlace {
    /// For people. Counts lines, for which it reads the file up to there.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::File(name) => name.clone(),
            Self::Row { name, row } => format!("{name}, row {row}"),
            Self::Line { path, name, start } => {
                let counted = File::open(path).and_then(|file| lines_before(file, *start));
                match counted {
                    Ok(before) => format!("{name}, line {}", before + 1),
                    Err(_) => format!("{name}, at byte {start}"),
                }
            }
        }
    }
}

fn lines_before(file: File, end: u64) -> io::Result<u64> {
    let mut reader = BufReader::with_capacity(1 << 20, file.take(end));
    let mut lines = 0;
    while reader.skip_until(b'\n')? > 0 {
        lines += 1;
    }
    Ok(lines)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Keeps all that it is given.
    #[derive(Debug, Default)]
    pub(crate) struct Collected {
        pub(crate) texts: Vec<String>,
        /// Places of broken documents.
        pub(crate) broken: Vec<String>,
        pub(crate) bytes: u64,
    }

    impl Sink for Collected {
        fn document(&mut self, text: &str) -> Result<(), Error> {
            self.texts.push(text.to_owned());
            Ok(())
        }

        fn broken(&mut self, broken: Broken) -> Result<(), Error> {
            self.broken.push(broken.place.text());
            Ok(())
        }

        fn advance(&mut self, bytes: u64) {
            self.bytes += bytes;
        }
    }
}
