//! The plain data that goes in and out of an engine: no tensor ever leaves its thread.
//! Most of it is the model library's own.

use std::{path::PathBuf, sync::Arc};

pub use ringtune_model::{
    Gradient, ModelInfo, ModelOptions, Moments, Pixels, Precision, PredictionType, RgbImage, SamplerKind,
};

/// Which checkpoint to load, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadModel {
    /// A folder in diffusers layout, or one safetensors file in the original layout.
    pub folder: PathBuf,
    /// What is known of it beside.
    pub options: ModelOptions,
    /// What the UNet computes in.
    pub precision: Precision,
    /// Threads within one libtorch operation; at least 1.
    pub threads: usize,
    /// What it is to be trained with; none: pictures only.
    pub training: Option<TrainingSize>,
}

/// What decides, with the number of threads, how the engine lays out frozen weights at the first step. A model that
/// was laid out for other sizes is loaded again, so that a job's bits never depend on the job before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingSize {
    /// Samples in a microbatch.
    pub batch: usize,
    /// Pixels of a side.
    pub resolution: usize,
    /// Sizes differ from microbatch to microbatch: everything is laid out for `resolution` before the first.
    pub bucketed: bool,
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
    /// Gamma of the min-SNR loss weights; none: all samples weigh the same.
    pub snr_gamma: Option<f64>,
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
            snr_gamma: self.snr_gamma,
        }
    }
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

/// Pictures of one prompt to sample: the model library's request, owned.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageRequest {
    /// Pictures, all in the same passes through the UNet.
    pub batch: usize,
    /// Pixel rows, a multiple of the VAE's factor.
    pub height: usize,
    /// Pixel columns, a multiple of the VAE's factor.
    pub width: usize,
    /// Token ids of the prompt, [chunks, max_text_length].
    pub prompt_ids: Vec<i64>,
    /// Token ids of the negative prompt, in as many chunks.
    pub negative_ids: Vec<i64>,
    /// Learned rows, [num_vectors, text_width]; may be empty.
    pub rows: Vec<f32>,
    /// How to get from noise to latents.
    pub sampler: SamplerKind,
    /// Denoising steps.
    pub steps: usize,
    /// Guidance scale; 1 or less means none.
    pub guidance: f64,
    /// Standard normal noise, [batch, latent_channels, height / factor, width / factor].
    pub noise: Vec<f32>,
    /// Standard normal noise for the steps of a sampler that takes some: [its `step_noises`, the shape of `noise`].
    pub step_noise: Vec<f32>,
}

impl ImageRequest {
    /// The same, as the model library borrows it.
    pub fn view(&self) -> ringtune_model::GenerateRequest<'_> {
        ringtune_model::GenerateRequest {
            batch: self.batch,
            height: self.height,
            width: self.width,
            prompt_ids: &self.prompt_ids,
            negative_ids: &self.negative_ids,
            rows: &self.rows,
            sampler: self.sampler,
            steps: self.steps,
            guidance: self.guidance,
            noise: &self.noise,
            step_noise: &self.step_noise,
        }
    }
}
