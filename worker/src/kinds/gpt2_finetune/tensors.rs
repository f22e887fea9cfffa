//! The large tensors of a state: parameters and moments, which the engine has, and the best parameters so far, which lie on
//! the disk. They are lent until the next step changes them, or held, and then read beside the passes of the next one.

use std::{io, sync::Arc};

use ringtune_shared::state::{CHUNK_BYTES, Dtype, StateError, TensorInfo};

use super::best_file::BestFile;
use crate::{
    engine::{EngineError, EngineHandle, HeldState, Parameter, StateTensor},
    rank_state::{Hold, Holds, LargeTensors},
};

/// What parameters are called in a state.
pub(super) const MODEL: &str = "model.";
/// What the best ones are called.
pub(super) const BEST: &str = "best.";

/// Which tensors a state has, and where they lie. The same for every step of a job, but that the best ones come with the
/// first validation.
#[derive(Debug)]
pub(super) struct Layout {
    /// The engine's.
    pub(super) engine: Vec<TensorInfo>,
    /// The best parameters, each with the bytes in front of it in their file.
    pub(super) best: Vec<(TensorInfo, u64)>,
}

impl Layout {
    /// Of a model with these parameters and this state.
    ///
    /// # Errors
    /// Names or sizes that no state can have.
    pub(super) fn new(state: &[StateTensor], parameters: &[Parameter]) -> Result<Self, StateError> {
        let info = |name: &str, shape: &[usize]| {
            TensorInfo::new(name, Dtype::F32, shape.iter().map(|side| *side as u64).collect())
        };
        let engine = state.iter().map(|tensor| info(&tensor.name, &tensor.shape));
        let engine = engine.collect::<Result<_, _>>()?;
        let (mut best, mut offset) = (Vec::new(), 0);
        for parameter in parameters {
            let tensor = info(&format!("{BEST}{}", parameter.name), &parameter.shape)?;
            let bytes = tensor.bytes();
            best.push((tensor, offset));
            offset += bytes;
        }
        Ok(Self { engine, best })
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> u64 {
        let best = self.best.iter().map(|(tensor, _)| tensor);
        self.engine.iter().chain(best).map(TensorInfo::bytes).fold(0, u64::saturating_add)
    }
}

/// Lends them.
#[derive(Clone, Debug)]
pub(super) struct Tensors {
    pub(super) engine: EngineHandle,
    pub(super) layout: Arc<Layout>,
    pub(super) best: Option<Arc<BestFile>>,
    /// Who holds what the engine has.
    pub(super) holds: Holds,
    /// Those that there are.
    listed: Arc<[TensorInfo]>,
}

impl Tensors {
    /// `best`: the best parameters, where there are any.
    pub(super) fn new(engine: EngineHandle, layout: Arc<Layout>, best: Option<Arc<BestFile>>) -> Self {
        let best_ones = layout.best.iter().map(|(tensor, _)| tensor).filter(|_| best.is_some());
        let listed = layout.engine.iter().chain(best_ones).cloned().collect();
        Self { engine, layout, best, holds: Holds::default(), listed }
    }

    /// The same with other best parameters, or none.
    pub(super) fn with_best(&self, best: Option<Arc<BestFile>>) -> Self {
        let holds = self.holds.clone();
        Self { holds, ..Self::new(self.engine.clone(), Arc::clone(&self.layout), best) }
    }

    /// Copies the parameters as they are now to a file on the disk that `folder` is on. Blocks.
    ///
    /// # Errors
    /// The engine's, or the disk's.
    pub(super) fn keep_best(&self, folder: &std::path::Path) -> Result<BestFile, StateError> {
        let file = BestFile::create(folder)?;
        let mut buffer = Vec::new();
        for (tensor, start) in &self.layout.best {
            let name = tensor.name().strip_prefix(BEST).unwrap_or_default();
            let name = format!("{MODEL}{name}");
            let mut offset = 0;
            while offset < tensor.bytes() {
                let length = (tensor.bytes() - offset).min(CHUNK_BYTES as u64);
                buffer.resize(length as usize, 0);
                buffer = self.engine.read_language_state(&name, offset, buffer).map_err(engine_error)?;
                file.write(start + offset, &buffer)?;
                offset += length;
            }
        }
        Ok(file)
    }
}

impl LargeTensors for Tensors {
    fn tensors(&self) -> &[TensorInfo] {
        &self.listed
    }

    fn fill(&self, tensor: usize, offset: u64, into: &mut [u8]) -> Result<(), StateError> {
        if let Some(tensor) = self.layout.engine.get(tensor) {
            let bytes = self.engine.read_language_state(tensor.name(), offset, vec![0; into.len()]);
            into.copy_from_slice(&bytes.map_err(engine_error)?);
            return Ok(());
        }
        self.fill_best(tensor, offset, into)
    }

    fn hold(&self) -> Result<Arc<dyn LargeTensors>, StateError> {
        let state = self.engine.hold_language_state().map_err(engine_error)?;
        Ok(Arc::new(HeldTensors { state, _hold: self.holds.begin(), of: self.clone() }))
    }
}

impl Tensors {
    /// One that is none of the engine's.
    fn fill_best(&self, tensor: usize, offset: u64, into: &mut [u8]) -> Result<(), StateError> {
        let best = tensor.checked_sub(self.layout.engine.len()).and_then(|best| self.layout.best.get(best));
        let (Some((_, start)), Some(file)) = (best, &self.best) else {
            return Err(StateError::refused("there is no such tensor"));
        };
        Ok(file.read(start + offset, into)?)
    }
}

/// The same, held.
#[derive(Debug)]
struct HeldTensors {
    /// Let go of before others hear of it.
    state: Box<dyn HeldState>,
    _hold: Hold,
    of: Tensors,
}

impl LargeTensors for HeldTensors {
    fn tensors(&self) -> &[TensorInfo] {
        self.of.tensors()
    }

    fn fill(&self, tensor: usize, offset: u64, into: &mut [u8]) -> Result<(), StateError> {
        match self.of.layout.engine.get(tensor) {
            Some(tensor) => self.state.read(tensor.name(), offset, into).map_err(engine_error),
            None => self.of.fill_best(tensor, offset, into),
        }
    }

    fn hold(&self) -> Result<Arc<dyn LargeTensors>, StateError> {
        // Nothing has changed since.
        self.of.hold()
    }
}

/// What the engine says, as an error of the state that it has.
pub(super) fn engine_error(error: EngineError) -> StateError {
    StateError::Io(io::Error::other(error))
}
