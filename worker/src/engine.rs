//! The engine, by the names that the rest of the worker uses ([`ringtune_engine`] describes it), and what a program
//! hands in that has a library to compute with. This crate links none.

use std::path::Path;

pub use ringtune_engine::{
    Activity, DrawPictures, EncodeImages, Engine, EngineError, EngineHandle, EngineIdentity, Gradient,
    ImageRequest, LoadModel, MOST_CHUNKS, MOST_PICTURES, Microbatch, ModelInfo, ModelOptions, Moments,
    Pixels, Precision, PredictionType, RgbImage, SamplerKind, TextualInversion, Threads, TrainingSize,
    Wanted, WorkerEngine,
};
#[cfg(test)]
pub(crate) use ringtune_fake_engine::{FakeEngine, FakeScript};

/// Starts an engine with so many compute threads; a job may change them later. Blocks.
pub type StartEngine = fn(Threads) -> Result<EngineHandle, EngineError>;

/// What a program brings of the library that computes.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Starts an engine.
    pub start: StartEngine,
    /// Checks that a folder is a model that the engine loads, by the headers of its files: names, shapes and types.
    /// Loads nothing. Blocks.
    pub check_folder: fn(&Path) -> Result<ModelInfo, EngineError>,
}
