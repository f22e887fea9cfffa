//! A state as a file: whole or not there.

use std::{fs::File, io::BufWriter, path::Path};

use super::{Decoder, Encoded, Encoder, Metadata, StateError, StateSink, TensorList};
use crate::files::NewFile;

/// Between the encoder and the disk: small tensors are not a call to the system each.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes a state to a file, which has its name, and is on the disk, only when the end came.
pub struct FileSink {
    /// None after the end.
    encoder: Option<Encoder<BufWriter<NewFile>>>,
    encoded: Option<Encoded>,
    /// Whether the file ends with the state.
    commits: bool,
    /// The whole file, if it does not.
    written: Option<NewFile>,
}

impl FileSink {
    /// Begins a file that will be `path`, in a folder that is there.
    ///
    /// # Errors
    /// The file system's.
    pub fn create(path: &Path, metadata: Metadata) -> Result<Self, StateError> {
        let writer = BufWriter::with_capacity(BUFFER_BYTES, NewFile::create(path)?);
        Ok(Self {
            encoder: Some(Encoder::new(metadata, writer)),
            encoded: None,
            commits: true,
            written: None,
        })
    }

    /// As above, but does not commit: at the end of the state all bytes are handed to the system, so that whoever lends the
    /// state can have it back; the file has its name, and is on the disk, with [`FileSink::commit`].
    ///
    /// # Errors
    /// The file system's.
    pub fn create_uncommitted(path: &Path, metadata: Metadata) -> Result<Self, StateError> {
        Ok(Self { commits: false, ..Self::create(path, metadata)? })
    }

    /// Ends the file of [`FileSink::create_uncommitted`]. May take as long as the disk does.
    ///
    /// # Errors
    /// The file system's; the end of the state did not come.
    pub fn commit(self) -> Result<Encoded, StateError> {
        let (Some(file), Some(encoded)) = (self.written, self.encoded) else {
            return Err(StateError::contract("the state has not ended, or the file has"));
        };
        file.commit()?;
        Ok(encoded)
    }

    /// The name and size of the file's content; none before the end.
    pub fn encoded(&self) -> Option<Encoded> {
        self.encoded
    }

    fn encoder(&mut self) -> Result<&mut Encoder<BufWriter<NewFile>>, StateError> {
        self.encoder.as_mut().ok_or_else(|| StateError::contract("the file is written"))
    }
}

impl StateSink for FileSink {
    fn begin(&mut self, list: &TensorList) -> Result<(), StateError> {
        self.encoder()?.begin(list)
    }

    fn write(&mut self, chunk: &[u8]) -> Result<(), StateError> {
        self.encoder()?.write(chunk)
    }

    fn finish(&mut self) -> Result<(), StateError> {
        self.encoder()?.finish()?;
        let Some(encoder) = self.encoder.take() else { return Ok(()) };
        let encoded = encoder.encoded();
        // The encoder has flushed it.
        let file = encoder.into_inner().into_inner().map_err(|error| error.into_error())?;
        if self.commits {
            file.commit()?;
        } else {
            self.written = Some(file);
        }
        self.encoded = encoded;
        Ok(())
    }
}

/// Opens a state's file and checks its header, against the file's size too.
///
/// It is read, not mapped: a file that somebody makes shorter meanwhile is an error and no signal that kills the process.
///
/// # Errors
/// It cannot be read, or is malformed.
pub fn open_file(path: &Path) -> Result<Decoder<File>, StateError> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    Decoder::new(file, Some(size))
}
