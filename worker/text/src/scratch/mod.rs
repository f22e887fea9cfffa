//! Scratch files of a run until its output is written: a folder `.prepare-text` in the output folder.
//!
//! ```text
//! KEY.tokens     the tokens of one part of the inputs; KEY is the hash of all that they depend on
//! inputs.json    what the parts were made from, to say what has changed
//! lock           held as long as a process works here
//! ```
//!
//! A run that is started again finds the parts that it needs by their names and makes the others. So whatever has changed
//! meanwhile, what it uses is what it would have made.

mod chunk;
mod record;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File, OpenOptions, TryLockError},
    path::{Path, PathBuf},
};

use ringtune_shared::ids::ContentHash;

pub(crate) use chunk::{Chunk, ChunkWriter};
pub(crate) use record::Record;

use crate::Error;

const FOLDER: &str = ".prepare-text";
const ENDING: &str = "tokens";

/// The folder, while this process alone works in it.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: PathBuf,
    _lock: File,
}

impl Scratch {
    /// Makes the folder in `output`, or takes the one that is there. Blocks.
    ///
    /// # Errors
    /// Another process works there, or nothing can be written there.
    pub(crate) fn open(output: &Path) -> Result<Self, Error> {
        let folder = output.join(FOLDER);
        fs::create_dir_all(&folder).map_err(Error::io("make the folder", &folder))?;
        let path = folder.join("lock");
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let lock = opened.map_err(Error::io("write", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { folder, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(Error::Busy(output.to_owned())),
            Err(TryLockError::Error(source)) => Err(Error::io("lock", &path)(source)),
        }
    }

    /// Path of a part's tokens, present or not.
    pub(crate) fn path_of(&self, key: &ContentHash) -> PathBuf {
        self.folder.join(format!("{key}.{ENDING}"))
    }

    /// Removes all but the parts of `keys`: those of other inputs, and halves. Says how many parts there were. Blocks.
    pub(crate) fn keep_only(&self, keys: &[ContentHash]) -> Result<usize, Error> {
        let wanted: BTreeSet<PathBuf> = keys.iter().map(|key| self.path_of(key)).collect();
        let mut removed = 0;
        for entry in fs::read_dir(&self.folder).map_err(Error::io("read", &self.folder))? {
            let path = entry.map_err(Error::io("read", &self.folder))?.path();
            let is_part = path.extension() == Some(OsStr::new(ENDING));
            let is_half = path.extension() == Some(OsStr::new("tmp"));
            if is_half || is_part && !wanted.contains(&path) {
                fs::remove_file(&path).map_err(Error::io("remove", &path))?;
                removed += usize::from(is_part);
            }
        }
        Ok(removed)
    }

    /// Record of the last run here; None if there was none, or one of another version. Blocks.
    pub(crate) fn last_record(&self) -> Option<Record> {
        let bytes = fs::read(self.record_path()).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Says what this run is made from. Blocks.
    pub(crate) fn write_record(&self, record: &Record) -> Result<(), Error> {
        let text = serde_json::to_vec(record).map_err(|error| Error::Internal(error.to_string()))?;
        Ok(ringtune_shared::files::write_atomically(&self.record_path(), &text)?)
    }

    fn record_path(&self) -> PathBuf {
        self.folder.join("inputs.json")
    }

    /// Removes all of it, once it is of no use any more. Blocks.
    pub(crate) fn remove(self) -> Result<(), Error> {
        fs::remove_dir_all(&self.folder).map_err(Error::io("remove", &self.folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_works_in_a_folder() {
        let output = tempfile::tempdir().unwrap();
        let first = Scratch::open(output.path()).unwrap();
        assert!(matches!(Scratch::open(output.path()), Err(Error::Busy(_))));
        drop(first);
        Scratch::open(output.path()).unwrap().remove().unwrap();
        assert_eq!(fs::read_dir(output.path()).unwrap().count(), 0);
    }

    #[test]
    fn halves_and_parts_of_other_inputs_go() {
        let output = tempfile::tempdir().unwrap();
        let scratch = Scratch::open(output.path()).unwrap();
        let keys = [b"one", b"two"].map(|text| ContentHash::of(text));
        for key in &keys {
            fs::write(scratch.path_of(key), "x").unwrap();
        }
        fs::write(scratch.folder.join(".half.tmp"), "x").unwrap();
        assert_eq!(scratch.keep_only(&keys[..1]).unwrap(), 1);
        let mut left: Vec<_> =
            fs::read_dir(&scratch.folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        left.sort();
        assert_eq!(left, [scratch.path_of(&keys[0]), scratch.folder.join("lock")]);
    }
}
