//! What is as large as the model, or twice as large, and is not to lie in memory: the parameters of the step with the lowest validation
//! loss so far, and moments that other ranks have.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::Path,
};

/// A file without a name, gone with the last of its holders. Its bytes are those of some tensors, one behind the other.
#[derive(Debug)]
pub(super) struct UnnamedFile {
    file: File,
}

impl UnnamedFile {
    /// An empty one on the disk that `folder` is on. Blocks.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        let path = folder.join("tensors.tmp");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(Self { file })
    }

    /// Puts bytes from `offset` on. Blocks.
    ///
    /// # Errors
    /// The file system's: a full disk, mostly.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Fills `into` from `offset` on. Blocks.
    ///
    /// # Errors
    /// The file system's, or there is less.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }
}
