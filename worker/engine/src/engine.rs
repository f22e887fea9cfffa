//! What every engine does.

use crate::{EngineError, LoadModel, ModelInfo};

/// Has at most one model loaded. Equal inputs give equal bits on workers of one numerics class with the same number
/// of threads.
pub trait Engine: Send {
    /// What computes here, with the outcome of a small fixed probe step.
    fn identity(&mut self) -> Result<EngineIdentity, EngineError>;

    /// Loads a model, or keeps the loaded one when the request is the same and the files on disk are
    /// unchanged.
    fn load(&mut self, request: &LoadModel) -> Result<ModelInfo, EngineError>;
}

/// What computes in this process. The parts of a worker's numerics class that the engine knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineIdentity {
    /// "2.13.0", or "none" for the fake.
    pub library_version: String,
    /// The instruction set that the library's kernels pick here: "AVX512", "AVX2" …
    pub instruction_set: String,
    /// Raised by whoever changes the engine's arithmetic.
    pub kernels_revision: u32,
    /// Hash of a small fixed computation, in hexadecimal: equal where the arithmetic is equal.
    pub probe: String,
}
