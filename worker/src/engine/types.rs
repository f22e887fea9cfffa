//! The plain data that goes in and out of an engine: no tensor ever leaves its thread.

use std::{path::PathBuf, sync::Arc};

/// What the ranks of a job compute in. The coordinator decides it once for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// fp32 throughout ("no" in the job file).
    Fp32,
    /// UNet in bf16, text encoder and loss as the diffusers script has them under autocast.
    Bf16,
}

impl Precision {
    /// The job file's own word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fp32 => "no",
            Self::Bf16 => "bf16",
        }
    }
}

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

/// What the trainer must know about a loaded checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// Pixels per latent side: the VAE's downsampling.
    pub vae_factor: usize,
    /// Channels of a latent.
    pub latent_channels: usize,
    /// The VAE's scaling factor, from its config.json.
    pub scaling_factor: f32,
    /// Floats of one token row: the text encoder's width.
    pub token_width: usize,
    /// Rows of the checkpoint's own token table.
    pub vocabulary_size: usize,
    /// Diffusion steps of the noise schedule: timesteps are in `0..train_timesteps`.
    pub train_timesteps: usize,
    /// "epsilon" or "v_prediction".
    pub prediction_type: String,
}

/// A prepared picture: [3, height, width] fp32 in [-1, 1], row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Pixels {
    /// In pixels.
    pub height: usize,
    /// In pixels.
    pub width: usize,
    /// 3 * height * width values.
    pub values: Vec<f32>,
}

/// The posterior of one image's latent: mean and standard deviation, unscaled, each
/// [channels, height, width] fp32.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// Latent channels.
    pub channels: usize,
    /// Latent rows.
    pub height: usize,
    /// Latent columns.
    pub width: usize,
    /// channels * height * width values.
    pub mean: Vec<f32>,
    /// The same number of values, >= 0.
    pub std: Vec<f32>,
}

/// The inputs of one forward and backward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Microbatch {
    /// Samples.
    pub batch: usize,
    /// Latent channels.
    pub channels: usize,
    /// Latent rows.
    pub height: usize,
    /// Latent columns.
    pub width: usize,
    /// [batch, channels, height, width]: clean, scaled.
    pub latents: Vec<f32>,
    /// The same shape.
    pub noise: Vec<f32>,
    /// [batch].
    pub timesteps: Vec<i64>,
    /// [batch, 77]; the learned rows' ids count up from the vocabulary's size.
    pub input_ids: Vec<i64>,
    /// [num_vectors, width] of the learned rows, shared with the other microbatches of the step.
    pub rows: Arc<Vec<f32>>,
}

/// What one forward and backward pass gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    /// Mean squared error over the microbatch.
    pub loss: f32,
    /// [num_vectors, width]: of this microbatch's loss, before any division or exchange.
    pub grad: Vec<f32>,
    /// The loss and every value of `grad` are finite.
    pub finite: bool,
    /// Seconds the pass took on the engine's thread.
    pub seconds: f64,
}
