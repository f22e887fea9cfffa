//! A small state, in memory.

use super::{
    ChunkPlace, FromTensors, Intake, State, StateError, StateSink, StateSource, TensorInfo, TensorList,
};

/// Tensors and their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// In canonical order.
    list: TensorList,
    /// Of each, little-endian.
    bytes: Vec<Vec<u8>>,
}

impl MemoryState {
    /// `tensors`, in any order, with their bytes: numbers little-endian, the last dimension running fastest.
    ///
    /// # Errors
    /// A name twice; as many bytes as a type and shape do not take.
    pub fn new(mut tensors: Vec<(TensorInfo, Vec<u8>)>) -> Result<Self, StateError> {
        tensors.sort_by(|(one, _), (other, _)| one.canonical_order(other));
        for (tensor, bytes) in &tensors {
            let (expected, given) = (tensor.bytes(), bytes.len() as u64);
            if given != expected {
                let problem = super::TensorProblem::Length { expected, given };
                return Err(StateError::tensor(tensor.name(), problem));
            }
        }
        let (infos, bytes) = tensors.into_iter().unzip();
        Ok(Self { list: TensorList::new(infos)?, bytes })
    }

    /// Its tensors with their bytes.
    pub fn tensors(&self) -> impl Iterator<Item = (&TensorInfo, &[u8])> {
        self.list.tensors().iter().zip(self.bytes.iter().map(Vec::as_slice))
    }

    /// As above, by value.
    pub fn into_tensors(self) -> impl Iterator<Item = (TensorInfo, Vec<u8>)> {
        let infos = self.list.tensors().to_vec();
        infos.into_iter().zip(self.bytes)
    }

    /// Takes all of a source in.
    ///
    /// # Errors
    /// The source's; more than `limit` bytes.
    pub fn read(source: &mut dyn StateSource, limit: u64) -> Result<Self, StateError> {
        let mut sink = MemorySink::new(limit);
        super::transfer(source, &mut sink)?;
        sink.into_state().ok_or_else(|| StateError::contract("a state came to its end and is not there"))
    }
}

impl State for MemoryState {
    fn source(&self) -> Result<Box<dyn StateSource + '_>, StateError> {
        let fill = |place: ChunkPlace, into: &mut [u8]| {
            let bytes = self.bytes.get(place.tensor).and_then(|bytes| {
                let start = usize::try_from(place.offset).ok()?;
                bytes.get(start..start.checked_add(place.length)?)
            });
            into.copy_from_slice(
                bytes.ok_or_else(|| StateError::contract("a tensor is shorter than it says"))?,
            );
            Ok(())
        };
        Ok(Box::new(FromTensors::new(self.list.clone(), fill)))
    }
}

/// Takes a small state in.
#[derive(Debug)]
pub struct MemorySink {
    limit: u64,
    intake: Intake,
    coming: Vec<Vec<u8>>,
    state: Option<MemoryState>,
}

impl MemorySink {
    /// A state of at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, intake: Intake::default(), coming: Vec::new(), state: None }
    }

    /// The received state; None before the end.
    pub fn state(&self) -> Option<&MemoryState> {
        self.state.as_ref()
    }

    /// As above, by value.
    pub fn into_state(self) -> Option<MemoryState> {
        self.state
    }
}

impl StateSink for MemorySink {
    fn begin(&mut self, list: &TensorList) -> Result<(), StateError> {
        self.intake.begin(list)?;
        let (given, limit) = (list.bytes(), self.limit);
        if given > limit {
            return Err(StateError::TooMany { what: "bytes of tensors", given, limit });
        }
        self.coming = vec![Vec::new(); list.tensors().len()];
        Ok(())
    }

    fn write(&mut self, chunk: &[u8]) -> Result<(), StateError> {
        let place = self.intake.take(chunk.len())?;
        // The list's numbers.
        if let Some(bytes) = self.coming.get_mut(place.tensor) {
            bytes.extend_from_slice(chunk);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), StateError> {
        let list = self.intake.finish()?;
        let bytes = std::mem::take(&mut self.coming);
        self.state = Some(MemoryState::new(list.tensors().iter().cloned().zip(bytes).collect())?);
        Ok(())
    }
}
