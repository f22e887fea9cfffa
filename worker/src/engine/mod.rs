//! The engine computes; everything else in the worker moves plain data to it and from it.

mod types;

pub use types::{Gradient, LoadModel, Microbatch, ModelInfo, Moments, Pixels, PredictionType, Precision};
