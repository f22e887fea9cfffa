//! Drawing pictures: what kinds that sample or preview need.

use crate::{Engine, EngineError, SamplerKind, Wanted};

/// Draws pictures with the loaded model.
pub trait DrawPictures: Engine {
    /// The pictures of one request, in order, with classifier-free guidance. They take long: between the network's
    /// predictions it asks whether they are still wanted, and gives [`EngineError::Unwanted`] if not.
    fn generate(&mut self, request: &ImageRequest, wanted: Wanted<'_>) -> Result<Vec<RgbImage>, EngineError>;
}

/// Pictures of one prompt to sample with classifier-free guidance.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageRequest {
    /// Pictures, 1 to [`MOST_PICTURES`], all in the same passes through the UNet.
    pub batch: usize,
    /// Pixel rows, a multiple of the VAE's factor.
    pub height: usize,
    /// Pixel columns, a multiple of the VAE's factor.
    pub width: usize,
    /// Token ids of the prompt, [chunks, max_text_length], 1 to [`MOST_CHUNKS`] chunks.
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

/// Chunks of a long prompt.
pub const MOST_CHUNKS: usize = 8;
/// Pictures that go through the UNet at once.
pub const MOST_PICTURES: usize = 64;
