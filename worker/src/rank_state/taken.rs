//! A state that came from elsewhere, as one takes it in.

use std::{collections::BTreeMap, fmt, fs::File, io::Seek};

use ringtune_shared::state::{Decoder, StateError, StateSource, TensorList};

use crate::train::{SavedState, saved};

/// A state whose hash was right, before it is used. Its tensors may still be on the disk.
pub struct TakenState {
    /// The counters.
    pub numbers: BTreeMap<String, u64>,
    /// The tensors.
    pub source: Box<dyn StateSource + Send>,
}

impl TakenState {
    /// A state in memory.
    ///
    /// # Errors
    /// Names that no state can have.
    pub fn of(saved: SavedState) -> Result<Self, StateError> {
        let numbers = saved.numbers.clone();
        Ok(Self { numbers, source: saved.into_source()? })
    }

    /// A state in a file that holds its encoding and nothing else. Blocks.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn in_file(mut file: File) -> Result<Self, StateError> {
        file.rewind()?;
        let size = file.metadata()?.len();
        let decoder = Decoder::new(file, Some(size))?;
        let numbers = saved::counters(&decoder.header().metadata)?;
        Ok(Self { numbers, source: Box::new(decoder) })
    }

    /// Reads it into memory. Blocks.
    ///
    /// # Errors
    /// It cannot be read, or is larger than what is kept in memory.
    pub fn into_saved(mut self) -> Result<SavedState, StateError> {
        SavedState::read(self.numbers, &mut self.source)
    }

    /// Its tensors.
    pub fn list(&self) -> &TensorList {
        self.source.list()
    }
}

impl fmt::Debug for TakenState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TakenState").field("numbers", &self.numbers).finish_non_exhaustive()
    }
}
