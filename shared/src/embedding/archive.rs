//! The zip files of torch.save: nothing is compressed, and none is larger than an embedding.
//!
//! Source: PKWARE's APPNOTE.TXT 6.3; PyTorch writes zip64 records, too, beside a plain end record that is filled in. The
//! entries' checksums are not checked.

use std::{collections::BTreeMap, ops::Range};

use super::EmbeddingError;

const END: &[u8] = b"PK\x05\x06";
const END_LENGTH: usize = 22;
const DIRECTORY_ENTRY: &[u8] = b"PK\x01\x02";
const DIRECTORY_ENTRY_LENGTH: usize = 46;
const LOCAL_ENTRY: &[u8] = b"PK\x03\x04";
const LOCAL_ENTRY_LENGTH: usize = 30;
/// Entries at most: an embedding has seven.
const MOST_ENTRIES: usize = 256;
/// Bytes of a name at most.
const MOST_NAME: usize = 1024;

/// The entries of a zip file by name.
#[derive(Debug)]
pub(super) struct Archive<'a> {
    bytes: &'a [u8],
    entries: BTreeMap<&'a str, Range<usize>>,
}

impl<'a> Archive<'a> {
    /// Reads the directory and checks that every entry lies within the file.
    ///
    /// # Errors
    /// It is damaged, compressed, or far from what torch.save writes.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, EmbeddingError> {
        // 1. The end record; a comment behind it has no use here.
        let at = bytes.len().checked_sub(END_LENGTH).filter(|at| bytes[*at..].starts_with(END));
        let at =
            at.ok_or_else(|| refused("it does not end as a zip file does: it may have been cut short"))?;
        let end = Fields { bytes, at };
        let [disk, first_disk, here, count] = [4, 6, 8, 10].map(|offset| end.u16(offset));
        if disk? != 0 || first_disk? != 0 || here? != count? {
            return Err(refused("it is one of several parts"));
        }
        let (length, start) = (end.u32(12)?, end.u32(16)?);
        let directory_end = start.checked_add(length).filter(|place| *place <= at);
        let directory_end = directory_end.ok_or_else(|| refused("its directory lies beyond its end"))?;
        let count = end.u16(10)?;
        if count > MOST_ENTRIES {
            return Err(refused(&format!("it has {count} entries, more than {MOST_ENTRIES}")));
        }
        // 2. The directory.
        let mut entries = BTreeMap::new();
        let mut place = start;
        for _ in 0..count {
            let directory = Fields { bytes: &bytes[..directory_end], at: place };
            let lengths = [directory.u16(28)?, directory.u16(30)?, directory.u16(32)?];
            let name = directory.text(DIRECTORY_ENTRY, DIRECTORY_ENTRY_LENGTH, lengths[0])?;
            place += DIRECTORY_ENTRY_LENGTH + lengths.iter().sum::<usize>();
            let data = data_of(bytes, name, &directory)?;
            if entries.insert(name, data).is_some() {
                return Err(refused(&format!("it has {name:?} twice")));
            }
        }
        Ok(Self { bytes, entries })
    }

    /// An entry's bytes.
    pub(super) fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.bytes.get(self.entries.get(name)?.clone())
    }

    /// The folder that data.pkl is in, which all other entries are in, too; with the "/" at its end.
    ///
    /// # Errors
    /// It is missing or ambiguous.
    pub(super) fn folder(&self) -> Result<&'a str, EmbeddingError> {
        let mut folders = self.entries.keys().filter_map(|name| name.strip_suffix("data.pkl"));
        let folder = folders.next().filter(|folder| folder.ends_with('/'));
        match (folder, folders.next()) {
            (Some(folder), None) => Ok(folder),
            _ => Err(refused("it has no FOLDER/data.pkl, or several")),
        }
    }
}

/// The bytes of an entry. Lengths come from the directory: the entry's own header may leave them to a trailer.
fn data_of(bytes: &[u8], name: &str, directory: &Fields<'_>) -> Result<Range<usize>, EmbeddingError> {
    let (flags, method) = (directory.u16(8)?, directory.u16(10)?);
    let (stored, length, at) = (directory.u32(20)?, directory.u32(24)?, directory.u32(42)?);
    if flags & 1 != 0 || method != 0 || stored != length {
        return Err(refused(&format!("{name:?} is compressed or encrypted; torch.save does neither")));
    }
    let local = Fields { bytes, at };
    let lengths = [local.u16(26)?, local.u16(28)?];
    if local.text(LOCAL_ENTRY, LOCAL_ENTRY_LENGTH, lengths[0])? != name {
        return Err(refused(&format!("{name:?} has another name where it lies")));
    }
    let start = at + LOCAL_ENTRY_LENGTH + lengths[0] + lengths[1];
    let end = start.checked_add(length).filter(|end| *end <= bytes.len());
    end.map(|end| start..end).ok_or_else(|| refused(&format!("{name:?} lies beyond the file's end")))
}

/// A record in the file, whose numbers are little-endian at fixed offsets.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn slice(&self, offset: usize, length: usize) -> Result<&'a [u8], EmbeddingError> {
        let start = self.at.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(length));
        let slice = start.zip(end).and_then(|(start, end)| self.bytes.get(start..end));
        slice.ok_or_else(|| refused("a record lies beyond the file's end"))
    }

    fn u16(&self, offset: usize) -> Result<usize, EmbeddingError> {
        Ok(self.slice(offset, 2)?.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn u32(&self, offset: usize) -> Result<usize, EmbeddingError> {
        Ok(self.slice(offset, 4)?.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// The name behind a record, which must begin as such a record does.
    fn text(&self, signature: &[u8], offset: usize, length: usize) -> Result<&'a str, EmbeddingError> {
        if self.slice(0, signature.len())? != signature || length > MOST_NAME {
            return Err(refused("a record of it is damaged"));
        }
        std::str::from_utf8(self.slice(offset, length)?).map_err(|_| refused("a name in it is not UTF-8"))
    }
}

fn refused(problem: &str) -> EmbeddingError {
    EmbeddingError::Archive(problem.to_owned())
}
