//! Hashes of what passes.

use std::io::{self, Read, Write};

use super::{Intake, StateError, StateSink, StateSource, TensorList};
use crate::ids::{ContentHash, ContentHasher};

/// Counts and hashes the bytes that are read from or written to something.
pub struct Hashing<T> {
    inner: T,
    hasher: ContentHasher,
    bytes: u64,
}

impl<T> Hashing<T> {
    /// Before the first byte.
    pub fn new(inner: T) -> Self {
        Self { inner, hasher: ContentHasher::new(), bytes: 0 }
    }

    /// Of all bytes so far.
    pub fn hash(&self) -> ContentHash {
        self.hasher.clone().finish()
    }

    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The reader or writer.
    pub fn into_inner(self) -> T {
        self.inner
    }

    fn passed(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.passed(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(buffer)?;
        self.passed(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A sink that keeps the hash of the tensors' bytes, without the header: for a header that names it.
#[derive(Default)]
pub struct TensorsHash {
    intake: Intake,
    hasher: ContentHasher,
    hash: Option<ContentHash>,
}

impl TensorsHash {
    /// The hash; none before the end.
    pub fn hash(&self) -> Option<ContentHash> {
        self.hash
    }

    /// The hash of all that a source gives.
    ///
    /// # Errors
    /// The source's.
    pub fn of(source: &mut dyn StateSource) -> Result<ContentHash, StateError> {
        let mut sink = Self::default();
        super::transfer(source, &mut sink)?;
        Ok(sink.hasher.finish())
    }
}

impl StateSink for TensorsHash {
    fn begin(&mut self, list: &TensorList) -> Result<(), StateError> {
        self.intake.begin(list)
    }

    fn write(&mut self, chunk: &[u8]) -> Result<(), StateError> {
        self.intake.take(chunk.len())?;
        self.hasher.update(chunk);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), StateError> {
        self.intake.finish()?;
        self.hash = Some(self.hasher.clone().finish());
        Ok(())
    }
}

/// A source whose tensors' bytes have to have a hash: another one is an error in the place of the end.
pub struct Verified<S> {
    inner: S,
    hasher: ContentHasher,
    expected: ContentHash,
}

impl<S: StateSource> Verified<S> {
    /// `expected`: what [`TensorsHash`] says of the right ones. `inner` is at its beginning.
    pub fn new(inner: S, expected: ContentHash) -> Self {
        Self { inner, hasher: ContentHasher::new(), expected }
    }

    /// The source itself.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: StateSource> StateSource for Verified<S> {
    fn list(&self) -> &TensorList {
        self.inner.list()
    }

    fn next_chunk(&mut self) -> Result<Option<&[u8]>, StateError> {
        match self.inner.next_chunk()? {
            Some(chunk) => {
                self.hasher.update(chunk);
                Ok(Some(chunk))
            }
            None => {
                let (found, expected) = (self.hasher.clone().finish(), self.expected);
                if found == expected { Ok(None) } else { Err(StateError::Hash { expected, found }) }
            }
        }
    }
}
