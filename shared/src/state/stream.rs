//! Sources and sinks of a state.

use super::{ChunkPlace, Cursor, StateError, TensorList};

/// Gives a state's tensors in order. Blocks: see the module's text.
///
/// The chunks are those of a [`Cursor`] over the list. After an error a source is unusable.
pub trait StateSource {
    /// The tensors, in the order in which their bytes come.
    fn list(&self) -> &TensorList;

    /// Lends the next chunk; none at the end, and ever after. That the end comes without an error means that the whole
    /// state was what it was meant to be: what is only known at the end (a hash, that nothing follows) is checked there.
    ///
    /// # Errors
    /// It cannot be read, or is not what it was meant to be.
    fn next_chunk(&mut self) -> Result<Option<&[u8]>, StateError>;
}

impl<S: StateSource + ?Sized> StateSource for Box<S> {
    fn list(&self) -> &TensorList {
        (**self).list()
    }

    fn next_chunk(&mut self) -> Result<Option<&[u8]>, StateError> {
        (**self).next_chunk()
    }
}

/// Takes a state in. Blocks: see the module's text.
///
/// Received chunks are not used before [`StateSink::finish`] has returned without an error; a sink that is dropped
/// earlier leaves nothing. After an error it takes nothing more. An [`Intake`](super::Intake) keeps to the order.
pub trait StateSink {
    /// The tensors that will come, in this order. Called once, first.
    ///
    /// # Errors
    /// They are not what can be taken.
    fn begin(&mut self, list: &TensorList) -> Result<(), StateError>;

    /// The next chunk, which is the one that is due by a [`Cursor`] over the list.
    ///
    /// # Errors
    /// Another one is due; it cannot be kept.
    fn write(&mut self, chunk: &[u8]) -> Result<(), StateError>;

    /// Everything came, and was what it was meant to be.
    ///
    /// # Errors
    /// Something is missing; it cannot be kept.
    fn finish(&mut self) -> Result<(), StateError>;
}

/// A state that can be read from its beginning as often as need be, always with the same bytes.
pub trait State {
    /// A source at its beginning.
    ///
    /// # Errors
    /// It cannot be read.
    fn source(&self) -> Result<Box<dyn StateSource + '_>, StateError>;
}

/// Moves a whole state, chunk by chunk.
///
/// # Errors
/// The source's or the sink's: then the sink has no state.
pub fn transfer(source: &mut dyn StateSource, sink: &mut dyn StateSink) -> Result<(), StateError> {
    sink.begin(source.list())?;
    while let Some(chunk) = source.next_chunk()? {
        sink.write(chunk)?;
    }
    sink.finish()
}

/// That much of a buffer, which grows to its largest chunk and never shrinks: what a shorter one left is written over, as
/// making zeros of it before every chunk took longer than hashing it.
pub(super) fn room(buffer: &mut Vec<u8>, length: usize) -> &mut [u8] {
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
    &mut buffer[..length]
}

/// A source of tensors that can be read anywhere: asks `fill` to put each chunk into a buffer of its length.
pub struct FromTensors<F> {
    cursor: Cursor,
    buffer: Vec<u8>,
    fill: F,
}

impl<F: FnMut(ChunkPlace, &mut [u8]) -> Result<(), StateError>> FromTensors<F> {
    /// `fill` gets the place of a chunk in `list`, and where it is to be put.
    pub fn new(list: TensorList, fill: F) -> Self {
        Self { cursor: Cursor::new(list), buffer: Vec::new(), fill }
    }
}

impl<F: FnMut(ChunkPlace, &mut [u8]) -> Result<(), StateError>> StateSource for FromTensors<F> {
    fn list(&self) -> &TensorList {
        self.cursor.list()
    }

    fn next_chunk(&mut self) -> Result<Option<&[u8]>, StateError> {
        let Some(place) = self.cursor.advance() else { return Ok(None) };
        let chunk = room(&mut self.buffer, place.length);
        (self.fill)(place, chunk)?;
        Ok(Some(chunk))
    }
}
