//! The large tensors of a state: parameters, moments and averages, which the engine has, and the best parameters so far, which lie on
//! the disk; so do moments that ranks have together, where all of them are wanted. They are lent until the next step changes them, or
//! held, and then read beside the passes of the next one.

use std::{io, sync::Arc};

use ringtune_shared::state::{CHUNK_BYTES, Dtype, StateError, TensorInfo};

use super::unnamed_file::UnnamedFile;
use crate::{
    engine::{EngineError, EngineHandle, HeldState, Parameter, StateTensor},
    rank_state::{Hold, Holds, LargeTensors},
};

/// What parameters are called in a state.
pub(super) const MODEL: &str = "model.";
/// What their averages are called, where they are kept: then they are what is judged, and the result.
pub(super) const AVERAGE: &str = "average.";
/// What the best ones are called.
pub(super) const BEST: &str = "best.";

/// Which tensors a state has, and where they lie. The same for every step of a job, but that the best ones come with the
/// first validation.
#[derive(Debug)]
pub(super) struct Layout {
    /// The parameters, which the engine has.
    pub(super) parameters: Vec<TensorInfo>,
    /// The optimizer's moments, each with the bytes in front of it where they lie in a file.
    pub(super) moments: Vec<(TensorInfo, u64)>,
    /// The parameters' averages, where they are kept, which the engine has.
    pub(super) averages: Vec<TensorInfo>,
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
        let in_a_file = |tensors: &mut dyn Iterator<Item = Result<TensorInfo, StateError>>| {
            let mut offset = 0;
            let mut all = Vec::new();
            for tensor in tensors {
                let tensor = tensor?;
                let bytes = tensor.bytes();
                all.push((tensor, offset));
                offset += bytes;
            }
            Ok::<_, StateError>(all)
        };
        let (own, others): (Vec<_>, Vec<_>) = state.iter().partition(|one| one.name.starts_with(MODEL));
        let (averages, moments): (Vec<&StateTensor>, Vec<_>) =
            others.into_iter().partition(|one| one.name.starts_with(AVERAGE));
        let of_engine = |tensor: &&StateTensor| info(&tensor.name, &tensor.shape);
        Ok(Self {
            parameters: own.iter().map(of_engine).collect::<Result<_, _>>()?,
            moments: in_a_file(&mut moments.iter().map(of_engine))?,
            averages: averages.iter().map(of_engine).collect::<Result<_, _>>()?,
            best: in_a_file(
                &mut parameters.iter().map(|one| info(&format!("{BEST}{}", one.name), &one.shape)),
            )?,
        })
    }

    /// What begins the names of those that become the result.
    pub(super) fn result(&self) -> &'static str {
        if self.averages.is_empty() { MODEL } else { AVERAGE }
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> u64 {
        let in_files = self.moments.iter().chain(&self.best).map(|(tensor, _)| tensor);
        self.parameters
            .iter()
            .chain(&self.averages)
            .chain(in_files)
            .map(TensorInfo::bytes)
            .fold(0, u64::saturating_add)
    }
}

/// Where the optimizer's moments are, as far as a state has them.
#[derive(Clone, Debug)]
pub(super) enum Moments {
    /// The engine has all of them.
    InEngine,
    /// The ranks have them together: they are in no rank's state.
    Shared,
    /// All of them, of a state that ranks have together.
    InFile(Arc<UnnamedFile>),
}

/// Where one tensor is.
#[derive(Clone, Copy, Debug)]
enum Home {
    Engine,
    /// From this byte of their file on.
    Moments(u64),
    Best(u64),
}

/// Lends them.
#[derive(Clone, Debug)]
pub(super) struct Tensors {
    pub(super) engine: EngineHandle,
    pub(super) layout: Arc<Layout>,
    pub(super) best: Option<Arc<UnnamedFile>>,
    pub(super) moments: Moments,
    /// Who holds what the engine has.
    pub(super) holds: Holds,
    /// Those that there are, and where.
    listed: Arc<[TensorInfo]>,
    homes: Arc<[Home]>,
}

impl Tensors {
    /// `best`: the best parameters, where there are any.
    pub(super) fn new(
        engine: EngineHandle,
        layout: Arc<Layout>,
        moments: Moments,
        best: Option<Arc<UnnamedFile>>,
    ) -> Self {
        let own = layout.parameters.iter().map(|tensor| (tensor, Home::Engine));
        let moments_home = |offset: u64| match moments {
            Moments::InEngine => Some(Home::Engine),
            Moments::Shared => None,
            Moments::InFile(_) => Some(Home::Moments(offset)),
        };
        let of_moments =
            layout.moments.iter().filter_map(|(tensor, offset)| Some((tensor, moments_home(*offset)?)));
        let of_best = layout.best.iter().map(|(tensor, offset)| (tensor, Home::Best(*offset)));
        let all: Vec<(TensorInfo, Home)> = own
            .chain(of_moments)
            .chain(layout.averages.iter().map(|tensor| (tensor, Home::Engine)))
            .chain(of_best.filter(|_| best.is_some()))
            .map(|(tensor, home)| (tensor.clone(), home))
            .collect();
        let (listed, homes): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let (listed, homes, holds) = (listed.into(), homes.into(), Holds::default());
        Self { engine, layout, best, moments, holds, listed, homes }
    }

    /// The same with other best parameters, or none.
    pub(super) fn with_best(&self, best: Option<Arc<UnnamedFile>>) -> Self {
        let (engine, layout, moments) = (self.engine.clone(), Arc::clone(&self.layout), self.moments.clone());
        Self { holds: self.holds.clone(), ..Self::new(engine, layout, moments, best) }
    }

    /// The same with its moments elsewhere.
    pub(super) fn with_moments(&self, moments: Moments) -> Self {
        let (engine, layout) = (self.engine.clone(), Arc::clone(&self.layout));
        Self { holds: self.holds.clone(), ..Self::new(engine, layout, moments, self.best.clone()) }
    }

    /// The gradients of these parameters, which were not finite, by the parameters' names and in words. None of them: no words.
    pub(super) fn gradients_of(&self, parameters: &[usize]) -> String {
        let name = |number: &usize| self.layout.best.get(*number)?.0.name().strip_prefix(BEST);
        // One spoils those behind it, and by what was looked up the token table's, which is the first: that alone would say little.
        let first: Vec<&str> = parameters.iter().filter_map(name).take(3).collect();
        let (all, first) = (parameters.len(), first.join(", "));
        let words = format!("; {all} gradients were not, on the way back first those of {first}");
        if all == 0 { String::new() } else { words }
    }

    /// Copies the parameters as they are now to a file on the disk that `folder` is on. Blocks.
    ///
    /// # Errors
    /// The engine's, or the disk's.
    pub(super) fn keep_best(&self, folder: &std::path::Path) -> Result<UnnamedFile, StateError> {
        let file = UnnamedFile::create(folder)?;
        let mut buffer = Vec::new();
        for (tensor, start) in &self.layout.best {
            let name = tensor.name().strip_prefix(BEST).unwrap_or_default();
            let name = format!("{}{name}", self.layout.result());
            let mut offset = 0;
            while offset < tensor.bytes() {
                let length = (tensor.bytes() - offset).min(CHUNK_BYTES as u64);
                buffer.resize(length as usize, 0);
                buffer = self.engine.read_state(&name, offset, buffer).map_err(engine_error)?;
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
        let engines = |name: &str, into: &mut [u8]| {
            let bytes = self.engine.read_state(name, offset, vec![0; into.len()]);
            into.copy_from_slice(&bytes.map_err(engine_error)?);
            Ok(())
        };
        self.fill_with(tensor, offset, into, engines)
    }

    fn hold(&self) -> Result<Arc<dyn LargeTensors>, StateError> {
        let state = self.engine.hold_state().map_err(engine_error)?;
        Ok(Arc::new(HeldTensors { state, _hold: self.holds.begin(), of: self.clone() }))
    }
}

impl Tensors {
    /// `engines`: reads what the engine has, by its name.
    fn fill_with(
        &self,
        tensor: usize,
        offset: u64,
        into: &mut [u8],
        engines: impl FnOnce(&str, &mut [u8]) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let gone = || StateError::refused("there is no such tensor");
        let (about, home) = self.listed.get(tensor).zip(self.homes.get(tensor)).ok_or_else(gone)?;
        match (home, &self.moments, &self.best) {
            (Home::Engine, ..) => engines(about.name(), into),
            (Home::Moments(start), Moments::InFile(file), _) => Ok(file.read(start + offset, into)?),
            (Home::Best(start), _, Some(file)) => Ok(file.read(start + offset, into)?),
            _ => Err(gone()),
        }
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
        let held = |name: &str, into: &mut [u8]| self.state.read(name, offset, into).map_err(engine_error);
        self.of.fill_with(tensor, offset, into, held)
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
