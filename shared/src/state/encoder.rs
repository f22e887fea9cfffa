//! The one encoding of a state, on its way out.

use std::io::{self, Write};

use super::{Hashing, Intake, Metadata, StateError, StateSink, StateSource, TensorList, header, transfer};
use crate::ids::ContentHash;

/// Writes a state as canonical safetensors to anything that takes bytes, and hashes them as they pass.
///
/// Writes each chunk by itself: if that is slow for small tensors, put an [`io::BufWriter`] behind it.
pub struct Encoder<W> {
    metadata: Metadata,
    writer: Hashing<W>,
    intake: Intake,
    encoded: Option<Encoded>,
}

/// Hash and size of the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Of all bytes, from the header's length on.
    pub sha256: ContentHash,
    /// Number of bytes.
    pub bytes: u64,
}

impl<W: Write> Encoder<W> {
    /// `metadata`: what the header says besides the tensors.
    pub fn new(metadata: Metadata, writer: W) -> Self {
        Self { metadata, writer: Hashing::new(writer), intake: Intake::default(), encoded: None }
    }

    /// Hash and size; None before the end.
    pub fn encoded(&self) -> Option<Encoded> {
        self.encoded
    }

    /// The writer.
    pub fn into_inner(self) -> W {
        self.writer.into_inner()
    }
}

impl Encoder<io::Sink> {
    /// The name and size that a state's encoding has.
    ///
    /// # Errors
    /// The source's; metadata or tensors that no header can have.
    pub fn hash(metadata: Metadata, source: &mut dyn StateSource) -> Result<Encoded, StateError> {
        let mut encoder = Self::new(metadata, io::sink());
        transfer(source, &mut encoder)?;
        Ok(Encoded { sha256: encoder.writer.hash(), bytes: encoder.writer.bytes() })
    }
}

impl<W: Write> StateSink for Encoder<W> {
    fn begin(&mut self, list: &TensorList) -> Result<(), StateError> {
        self.intake.begin(list)?;
        list.check_order()?;
        let header = header::encode(&self.metadata, list)?;
        Ok(self.writer.write_all(&header)?)
    }

    fn write(&mut self, chunk: &[u8]) -> Result<(), StateError> {
        self.intake.take(chunk.len())?;
        Ok(self.writer.write_all(chunk)?)
    }

    fn finish(&mut self) -> Result<(), StateError> {
        self.intake.finish()?;
        self.writer.flush()?;
        self.encoded = Some(Encoded { sha256: self.writer.hash(), bytes: self.writer.bytes() });
        Ok(())
    }
}
