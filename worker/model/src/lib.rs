//! Stable Diffusion on libtorch, as far as textual inversion needs it, and GPT-2, trained and continuing texts: the only crate that names tch.
//!
//! The way in is [`Runtime::initialise`], then [`StableDiffusion::open`], [`Gpt2::open`] or [`Gpt2Text::open`] and its methods; they take and return
//! plain data ([`api`], [`ringtune_engine`]). Every random draw is the caller's. The networks' blocks are public modules so that each
//! can be checked against the reference implementation: open a [`weights::Weights`], take a
//! [`weights::Scope`] of it, build the block, call `forward` with tensors.

#![deny(clippy::disallowed_types)]

pub mod api;
pub mod attention;
pub mod clip;
pub mod config;
pub mod convolution;
pub mod error;
mod finite;
mod float_rates;
mod generate;
mod gpt2;
pub mod growing;
pub mod layers;
mod mapped_file;
pub mod min_snr;
pub mod model_files;
mod native;
mod packed_weights;
mod probe;
pub mod profile;
mod rates;
pub mod resnet;
pub mod runtime;
pub mod samplers;
pub mod schedule;
mod single_file;
mod stable_diffusion;
mod textual_inversion;
pub mod time_projections;
pub mod unet;
pub mod vae;
pub mod weights;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#[path = "../tests/support/mod.rs"]
mod support;

pub use api::{GenerateRequest, Microbatch};
pub use error::{Error, Result};
pub use float_rates::{FloatRate, float_rates};
pub use gpt2::{Gpt2, Gpt2Config, Gpt2Text, HeldTensors, check_gpt2_folder};
pub use probe::{KERNELS_REVISION, probe};
pub use rates::machine_rates;
pub use ringtune_engine::{
    AlignedFloats, Applied, BucketSizes, Buckets, Dropout, EngineError, FeedTokens, Gradient, HeldState,
    InstructionSet, LanguageGradient, LanguageModelFolder, LanguageModelInfo, LanguageModelSource, LookedUp,
    ModelInfo, ModelOptions, Moments, NewLanguageModel, OpenLanguageModel, OpenTextModel, OptimizerStep,
    Pixels, Precision, PredictionType, RgbImage, SamplerKind, Shares, StateTensor, TextContext,
    TextModelInfo, TokenBatch,
};
pub use runtime::{Runtime, RuntimeInfo};
pub use stable_diffusion::{StableDiffusion, check_folder};
