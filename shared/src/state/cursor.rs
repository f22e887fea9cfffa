//! The order of a state's chunks, which follows from the list alone, for every source and sink.

use super::{StateError, TensorList};

/// Bytes of a chunk, but for a tensor's last. A multiple of every number's size: none is ever cut in two.
pub const CHUNK_BYTES: usize = 1 << 20;

/// A chunk's place: a nonempty part of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// The tensor's number in the list, from 0.
    pub tensor: usize,
    /// Bytes of the tensor before it.
    pub offset: u64,
    /// Its bytes.
    pub length: usize,
}

/// Goes through the chunks of a list. A tensor without bytes has none.
#[derive(Clone, Debug)]
pub struct Cursor {
    list: TensorList,
    tensor: usize,
    offset: u64,
}

impl Cursor {
    /// Before the first chunk.
    pub fn new(list: TensorList) -> Self {
        Self { list, tensor: 0, offset: 0 }
    }

    /// Its list.
    pub fn list(&self) -> &TensorList {
        &self.list
    }

    /// The chunk that is due; none at the end.
    pub fn due(&self) -> Option<ChunkPlace> {
        let (mut tensor, mut offset) = (self.tensor, self.offset);
        loop {
            let left = self.list.tensors().get(tensor)?.bytes() - offset;
            if left > 0 {
                let length = usize::try_from(left).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
                return Some(ChunkPlace { tensor, offset, length });
            }
            (tensor, offset) = (tensor + 1, 0);
        }
    }

    /// Goes past the chunk that is due and returns it.
    pub fn advance(&mut self) -> Option<ChunkPlace> {
        let place = self.due()?;
        (self.tensor, self.offset) = (place.tensor, place.offset + place.length as u64);
        Some(place)
    }
}

/// The protocol of every sink: the list once, then each chunk in order, then the end. After an error it takes nothing.
#[derive(Clone, Debug, Default)]
pub struct Intake {
    stage: Stage,
}

#[derive(Clone, Debug, Default)]
enum Stage {
    #[default]
    New,
    Begun(Cursor),
    Over,
}

impl Intake {
    /// The list came.
    ///
    /// # Errors
    /// It came before.
    pub fn begin(&mut self, list: &TensorList) -> Result<(), StateError> {
        match self.stage {
            Stage::New => {
                self.stage = Stage::Begun(Cursor::new(list.clone()));
                Ok(())
            }
            _ => Err(self.broken("a list came twice")),
        }
    }

    /// A chunk of `length` bytes came: its place.
    ///
    /// # Errors
    /// Another one is due, or none.
    pub fn take(&mut self, length: usize) -> Result<ChunkPlace, StateError> {
        let Stage::Begun(cursor) = &mut self.stage else {
            return Err(self.broken("a chunk came before the list or after the end"));
        };
        match cursor.advance() {
            Some(place) if place.length == length => Ok(place),
            Some(place) => Err(self.broken(&format!("{length} bytes came where {} were due", place.length))),
            None => Err(self.broken(&format!("{length} bytes came behind the last tensor"))),
        }
    }

    /// The end came. The list of what is all there.
    ///
    /// # Errors
    /// Something is missing, or the end came before.
    pub fn finish(&mut self) -> Result<TensorList, StateError> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Begun(cursor) if cursor.due().is_none() => Ok(cursor.list),
            Stage::Begun(cursor) => {
                let missing = cursor.due().and_then(|place| cursor.list.tensors().get(place.tensor));
                let name = missing.map(|tensor| super::error::cut(tensor.name())).unwrap_or_default();
                Err(StateError::contract(format!("the end came before all of tensor {name:?}")))
            }
            Stage::New | Stage::Over => Err(StateError::contract("an end came that ends nothing")),
        }
    }

    fn broken(&mut self, problem: &str) -> StateError {
        self.stage = Stage::Over;
        StateError::contract(problem)
    }
}
