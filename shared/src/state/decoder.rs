//! The one encoding of a state, on its way in. Nothing in it is trusted: it may come from anywhere.

use std::io::Read;

use super::{Cursor, Header, StateError, StateSource, TensorList, fill::fill, stream::room};

/// Reads a state from anything that gives bytes: safetensors, canonical or not. What it allocates is bounded by the
/// header's limits and one chunk, whatever the header says.
pub struct Decoder<R> {
    reader: R,
    header: Header,
    cursor: Cursor,
    buffer: Vec<u8>,
    /// Bytes that came, the header's included.
    came: u64,
    ended: bool,
}

impl<R: Read> Decoder<R> {
    /// Reads and checks the header. `size`: of everything, where it is known; the end is checked anyhow, later.
    ///
    /// # Errors
    /// The header is malformed, or announces another size.
    pub fn new(mut reader: R, size: Option<u64>) -> Result<Self, StateError> {
        let header = Header::read(&mut reader, size)?;
        let (cursor, came) = (Cursor::new(header.tensors.clone()), header.bytes);
        Ok(Self { reader, header, cursor, buffer: Vec::new(), came, ended: false })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The reader, which is at its end after the last tensor.
    pub fn into_inner(self) -> R {
        self.reader
    }
}

impl<R: Read> StateSource for Decoder<R> {
    fn list(&self) -> &TensorList {
        &self.header.tensors
    }

    /// At the end nothing may follow: a stream has to be closed behind the last tensor.
    fn next_chunk(&mut self) -> Result<Option<&[u8]>, StateError> {
        let Some(place) = self.cursor.advance() else {
            if !self.ended && fill(&mut self.reader, &mut [0])? > 0 {
                return Err(StateError::Trailing { expected: self.header.size() });
            }
            self.ended = true;
            return Ok(None);
        };
        let chunk = room(&mut self.buffer, place.length);
        let count = fill(&mut self.reader, chunk)?;
        self.came += count as u64;
        if count < place.length {
            // A file may become shorter while it is read, too.
            return Err(StateError::Truncated { expected: self.header.size(), found: self.came });
        }
        Ok(Some(chunk))
    }
}
