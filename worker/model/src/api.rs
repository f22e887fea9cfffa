//! Plain data that crosses the crate's boundary: no libtorch type among them.

use crate::samplers::SamplerKind;

/// The number format of a job's heavy arithmetic.
///
/// `Bf16` is diffusers' textual_inversion.py with `mixed_precision="bf16"` where that decides the time: the VAE, and the
/// UNet's matrix products, convolutions and activations between its first and its last convolution. In fp32, unlike
/// there, are the text encoder, noising, scales, shifts and statistics of norms, the time embedding, and the UNet's
/// first and last convolution; as there, the loss and the learned rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Everything in fp32.
    Fp32,
    /// bfloat16 for what takes the time.
    Bf16,
}

impl Precision {
    /// The name used in job files and numerics classes: "fp32" or "bf16".
    pub fn name(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Bf16 => "bf16",
        }
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What a caller says about a checkpoint beside where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ModelOptions {
    /// "fp16" of a folder's `model.fp16.safetensors`; empty: none.
    pub variant: String,
    /// What the UNet predicts, instead of what the checkpoint says, or where a single file cannot say it.
    pub prediction_type: Option<PredictionType>,
    /// Train on the checkpoint's schedule shifted so that its last step is pure noise (Lin et al. 2023, algorithm 1;
    /// diffusers' `rescale_betas_zero_snr`). Only where the velocity is predicted. Sampling follows the checkpoint.
    pub rescale_zero_snr: bool,
}

/// What the UNet predicts, from scheduler_config.json's `prediction_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PredictionType {
    /// The noise that was added (SD 1.x, SD 2 base).
    Epsilon,
    /// The velocity of Salimans & Ho 2022 (SD 2 and 2.1 at 768 px).
    VPrediction,
}

impl PredictionType {
    /// The name in scheduler_config.json.
    pub fn name(self) -> &'static str {
        match self {
            PredictionType::Epsilon => "epsilon",
            PredictionType::VPrediction => "v_prediction",
        }
    }
}

/// What a checkpoint's config files say that a job has to know.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// Rows of the frozen token table; learned rows take the ids from here on.
    pub vocab_size: usize,
    /// Floats in one token row: the text encoder's hidden size.
    pub text_width: usize,
    /// Tokens in one prompt, padding included (77 in every SD).
    pub max_text_length: usize,
    /// Channels of a latent (4 in every SD 1.x and 2.x).
    pub latent_channels: usize,
    /// Pixels per latent position along one side (8 in SD): image sides are multiples of it.
    pub vae_factor: usize,
    /// What a posterior sample is multiplied with to make a latent.
    pub scaling_factor: f64,
    /// Timesteps are 0 .. this.
    pub num_train_timesteps: usize,
    /// What the UNet predicts.
    pub prediction_type: PredictionType,
    /// The sampler of its scheduler's class; DDIM where no sampler here is of that class.
    pub sampler: SamplerKind,
    /// That class, where no sampler here is of it.
    pub unknown_scheduler: Option<String>,
    /// The side in pixels the UNet was made for (`sample_size` x factor), when its config says so.
    pub native_resolution: Option<usize>,
}

/// One picture: `data` is [3, height, width], values in [-1, 1]; both sides multiples of the VAE's factor.
#[derive(Debug, Clone, PartialEq)]
pub struct Pixels {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Channel by channel (red, green, blue), row by row.
    pub data: Vec<f32>,
}

/// The posterior of one picture, fp32, unscaled: `mean` and `logvar` are each
/// [channels, height, width] with height and width in latent positions; `logvar` is clamped to [-30, 20].
///
/// A latent is `(mean + exp(logvar / 2) * noise) * scaling_factor`.
/// Source: Rombach et al. 2022, section 3.1; diffusers DiagonalGaussianDistribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    /// Latent channels.
    pub channels: usize,
    /// Latent rows.
    pub height: usize,
    /// Latent columns.
    pub width: usize,
    /// Means.
    pub mean: Vec<f32>,
    /// Log-variances.
    pub logvar: Vec<f32>,
}

/// One microbatch of textual inversion, with every random draw made by the caller.
///
/// `latents` and `noise`: [batch, latent_channels, latent_height, latent_width]; `timesteps`: [batch];
/// `input_ids`: [batch, max_text_length], each below vocab_size + num_vectors; `rows`: [num_vectors, text_width].
/// Token id vocab_size + v takes learned row v, every other id the frozen table.
#[derive(Debug, Clone, Copy)]
pub struct Microbatch<'a> {
    /// Samples.
    pub batch: usize,
    /// Latent rows: image height / VAE factor.
    pub latent_height: usize,
    /// Latent columns: image width / VAE factor.
    pub latent_width: usize,
    /// Clean latents, already multiplied with the scaling factor.
    pub latents: &'a [f32],
    /// Standard normal noise.
    pub noise: &'a [f32],
    /// Each in 0 .. num_train_timesteps.
    pub timesteps: &'a [i64],
    /// Token ids, padded to max_text_length.
    pub input_ids: &'a [i64],
    /// The learned rows, fp32.
    pub rows: &'a [f32],
    /// Gamma of the min-SNR loss weights (see [`crate::min_snr`]), above 0; none: all samples weigh the same.
    pub snr_gamma: Option<f64>,
}

/// What one microbatch yields.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradient {
    /// Mean squared error over all elements of the microbatch, each sample's by its weight, fp32.
    pub loss: f32,
    /// d loss / d rows, [num_vectors, text_width], fp32.
    pub grad: Vec<f32>,
    /// Whether the loss and every gradient element are finite.
    pub finite: bool,
    /// Seconds of the text encoder's and the UNet's forward pass.
    pub forward_seconds: f64,
    /// Seconds of the backward pass.
    pub backward_seconds: f64,
}

/// Pictures of one prompt to sample with classifier-free guidance, all in the same passes through the UNet.
#[derive(Debug, Clone, Copy)]
pub struct GenerateRequest<'a> {
    /// Pictures, 1 to [`MOST_PICTURES`].
    pub batch: usize,
    /// Pixel rows, a multiple of the VAE's factor.
    pub height: usize,
    /// Pixel columns, a multiple of the VAE's factor.
    pub width: usize,
    /// Token ids of the prompt, [chunks, max_text_length], 1 to [`MOST_CHUNKS`] chunks. Each chunk goes through the text
    /// encoder by itself; the UNet sees their states one behind the other.
    pub prompt_ids: &'a [i64],
    /// Token ids of the negative (usually empty) prompt, in as many chunks; unused when guidance <= 1.
    pub negative_ids: &'a [i64],
    /// Learned rows, [num_vectors, text_width]; may be empty.
    pub rows: &'a [f32],
    /// How to get from noise to latents.
    pub sampler: SamplerKind,
    /// Denoising steps, 1 ..= num_train_timesteps.
    pub steps: usize,
    /// Guidance scale; 1 or less means no guidance.
    pub guidance: f64,
    /// Standard normal noise to start from, [batch, latent_channels, height / factor, width / factor].
    pub noise: &'a [f32],
    /// Standard normal noise for the steps of a sampler that takes some:
    /// [[`SamplerKind::step_noises`] of `steps`, the shape of `noise`].
    pub step_noise: &'a [f32],
}

/// Chunks of a long prompt.
pub const MOST_CHUNKS: usize = 8;
/// Pictures that go through the UNet at once.
pub const MOST_PICTURES: usize = 64;

/// An 8-bit picture, row by row, three bytes (red, green, blue) a pixel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RgbImage {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// height x width x 3 bytes.
    pub data: Vec<u8>,
}
