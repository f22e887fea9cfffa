//! Encoding pictures: what jobs that train on pictures need.

use crate::{Engine, EngineError};

/// Encodes pictures with the loaded model's VAE.
pub trait EncodeImages: Engine {
    /// The posterior of one picture. Loads the VAE when it is not in memory.
    fn encode_image(&mut self, pixels: &Pixels) -> Result<Moments, EngineError>;

    /// Lets go of the VAE: training does not need it.
    fn drop_vae(&mut self);
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
