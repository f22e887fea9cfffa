//! The plain data that goes in and out of an engine: no tensor ever leaves its thread.
//! Most of it is the model library's own.

use std::{path::PathBuf, sync::Arc};

pub use ringtune_model::{Gradient, ModelInfo, Moments, Pixels, Precision, PredictionType};

/// Which checkpoint to load, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadModel {
    /// A folder in diffusers layout.
    pub folder: PathBuf,
    /// What the UNet computes in.
    pub precision: Precision,
    /// Threads within one libtorch operation; at least 1.
    pub threads: usize,
}

/// The inputs of one forward and backward pass: the model library's microbatch, owned.
#[derive(Clone, Debug, PartialEq)]
pub struct Microbatch {
    /// Samples.
    pub batch: usize,
    /// Latent channels.
    pub latent_channels: usize,
    /// Latent rows.
    pub latent_height: usize,
    /// Latent columns.
    pub latent_width: usize,
    /// [batch, channels, height, width]: clean, scaled.
    pub latents: Vec<f32>,
    /// The same shape: standard normal.
    pub noise: Vec<f32>,
    /// [batch].
    pub timesteps: Vec<i64>,
    /// [batch, max_text_length]; the learned rows' ids count up from the vocabulary's size.
    pub input_ids: Vec<i64>,
    /// [num_vectors, text_width], the learned rows: shared with the other microbatches of the step.
    pub rows: Arc<Vec<f32>>,
}

impl Microbatch {
    /// The same, as the model library borrows it.
    pub fn view(&self) -> ringtune_model::Microbatch<'_> {
        ringtune_model::Microbatch {
            batch: self.batch,
            latent_height: self.latent_height,
            latent_width: self.latent_width,
            latents: &self.latents,
            noise: &self.noise,
            timesteps: &self.timesteps,
            input_ids: &self.input_ids,
            rows: &self.rows,
        }
    }
}
