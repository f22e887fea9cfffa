//! The engine, by the names that the rest of the worker uses ([`ringtune_engine`] describes it), and what a program
//! hands in that has a library to compute with. This crate links none.

use std::path::Path;

pub use ringtune_engine::{
    Activity, AdamWScalars, AdaptLayers, AdaptableLayer, Adapter, AlignedFloats, Applied, Attention, Bucket,
    BucketPlan, BucketSizes, Buckets, DrawPictures, Dropout, EmbeddingRows, EncodeImages, Engine,
    EngineError, EngineHandle, EngineIdentity, Extras, FeedTokens, FirstValues, FixedAdapter, GenerateText,
    Gradient, HeldState, HoldParameters, ImageRequest, InstructionSet, LEARNED_ROWS, LanguageModelFolder,
    LanguageModelInfo, LanguageModelSource, LayerShape, LoadModel, MOST_CHUNKS, MOST_PICTURES, MachineRates,
    Microbatch, ModelInfo, ModelOptions, Moments, NewLanguageModel, OpenAdapters, OpenLanguageModel,
    OpenTextModel, OpenUnet, Operator, OperatorScope, OptimizerStep, OuterStep, Parameter, ParametersInfo,
    PassSummary, Piece, Pixels, Precision, PredictionType, ROWS_RATE, Recording, RgbImage, STEP, SamplePlace,
    SamplerKind, Shares, Shows, StateTensor, TEXT_ENCODER, TensorShape, TextContext, TextModelInfo,
    TextualInversion, Threads, TokenBatch, TrainLanguageModel, TrainPictures, TrainingSize, UnetTensor,
    Wanted, WorkerEngine, common,
};
#[cfg(test)]
pub(crate) use ringtune_fake_engine::{FakeEngine, FakeScript};

/// Starts an engine with so many compute threads; a job may change them later. Blocks.
pub type StartEngine = fn(Threads) -> Result<EngineHandle, EngineError>;

/// The computing library of a program.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Starts an engine.
    pub start: StartEngine,
    /// Checks that a folder is a model that the engine loads, by the headers of its files: names, shapes and types.
    /// Loads nothing. Blocks.
    pub check_folder: fn(&Path, &ModelOptions) -> Result<ModelInfo, EngineError>,
    /// For `bench`.
    pub meter: Meter,
}

/// Measures a library's work; called on the engine's thread.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// Records all operators from here on. Fails where a recording is on.
    pub start_recording: fn() -> Result<(), EngineError>,
    /// Ends the recording.
    pub stop_recording: fn() -> Result<Recording, EngineError>,
    /// Peak rates of library and machine in this precision, with the engine's threads. Takes a few tenths of a second.
    pub machine_rates: fn(Precision) -> Result<MachineRates, EngineError>,
}
