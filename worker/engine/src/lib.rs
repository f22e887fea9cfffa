//! The engine computes; everything else in the worker moves plain data to it and from it.
//!
//! An engine is synchronous and lives on one operating-system thread ([`EngineHandle::start`]): libtorch's settings are
//! per thread, and its calls last from milliseconds to minutes. The async side holds an [`EngineHandle`], which sends
//! one piece of work at a time over a bounded channel and awaits its answer. The work is a closure
//! ([`EngineHandle::run`]); what callers ask most has a method of its own.
//!
//! Every engine has a name for what it computes with and loads models ([`Engine`]). Beside it stands one small
//! trait for each thing that kinds of work need: [`EncodeImages`], [`TextualInversion`], [`DrawPictures`],
//! [`AdaptLayers`], [`TrainPictures`], [`TrainLanguageModel`], [`GenerateText`]; what holds parameters that are trained is [`HoldParameters`].
//! [`WorkerEngine`] is all of them, and so the list of what the engine of a worker has to do.
//!
//! # What is large stays on the thread
//! No tensor leaves the engine's thread: what goes in and out is plain data of a few megabytes at most. A kind of work
//! that trains gigabytes keeps them there too, in the engine: the weights and the optimizer's state. Whoever needs a part
//! of them sends a closure, which takes one chunk in or out; whoever needs all of them (for a checkpoint) holds them and reads
//! beside what is computed ([`HeldState`]). They are never copied whole.
//! Gradients, which travel, are in buckets that change hands ([`Buckets`]).

#![deny(clippy::disallowed_types)]

mod activity;
mod adapters;
mod aligned;
mod bucket_plan;
mod calls;
mod draw_pictures;
mod embedding_rows;
mod encode_images;
mod engine;
mod error;
mod generate_text;
mod instructions;
mod language_model;
mod model;
mod optimizer_step;
mod parameters;
mod recording;
mod sampler_kind;
mod shares;
mod text_context;
mod textual_inversion;
mod thread;
mod threads;
mod train_pictures;
mod wanted;
mod worker_engine;

pub use activity::{Activity, LONGEST_SILENCE};
pub use adapters::{AdaptLayers, AdaptableLayer, FixedAdapter, LayerShape};
pub use aligned::AlignedFloats;
pub use bucket_plan::{Bucket, BucketPlan, BucketSizes, Parameter, Piece};
pub use draw_pictures::{DrawPictures, ImageRequest, MOST_CHUNKS, MOST_PICTURES, RgbImage};
pub use embedding_rows::EmbeddingRows;
pub use encode_images::{EncodeImages, Moments, Pixels};
pub use engine::{Engine, EngineIdentity};
pub use error::EngineError;
pub use generate_text::{FeedTokens, GenerateText, OpenTextModel, TextModelInfo};
pub use instructions::InstructionSet;
pub use language_model::{
    Dropout, LanguageModelFolder, LanguageModelInfo, LanguageModelSource, NewLanguageModel,
    OpenLanguageModel, TokenBatch, TrainLanguageModel,
};
pub use model::{LoadModel, ModelInfo, ModelOptions, Precision, PredictionType, TrainingSize};
pub use optimizer_step::{AdamWScalars, Applied, OptimizerStep, OuterStep, WrongStep};
pub use parameters::{Buckets, HeldState, HoldParameters, ParametersInfo, PassSummary, Shows, StateTensor};
pub use recording::{MachineRates, Operator, OperatorScope, Recording, STEP, TEXT_ENCODER, TensorShape};
pub use sampler_kind::SamplerKind;
pub use shares::{Shares, common};
pub use text_context::TextContext;
pub use textual_inversion::{Extras, Gradient, Microbatch, SamplePlace, TextualInversion};
pub use thread::EngineHandle;
pub use threads::Threads;
pub use train_pictures::{
    Adapter, Attention, FirstValues, LEARNED_ROWS, OpenAdapters, OpenUnet, ROWS_RATE, TrainPictures,
    UnetTensor,
};
pub use wanted::Wanted;
pub use worker_engine::WorkerEngine;
