//! Textual inversion: the gradient of a few learned rows of the token table.

use std::sync::Arc;

use crate::{Engine, EngineError};

/// Computes with the loaded model and learned rows that come with every call.
pub trait TextualInversion: Engine {
    /// The token table's row of token `id`: text_width floats.
    fn token_row(&mut self, id: i64) -> Result<Vec<f32>, EngineError>;

    /// Lays the model's frozen weights out for the [`TrainingSize`](crate::TrainingSize) that it was loaded for, if that was
    /// not done: else the first gradient would, for the size that it happens to have.
    fn lay_out(&mut self) -> Result<(), EngineError>;

    /// Loss of a microbatch and its gradient with respect to the learned rows.
    fn gradient(&mut self, microbatch: &Microbatch) -> Result<Gradient, EngineError>;

    /// Loss of a microbatch alone.
    fn loss(&mut self, microbatch: &Microbatch) -> Result<f32, EngineError>;
}

/// The inputs of one forward and backward pass, with every random draw made by the caller.
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
    /// What only some jobs have.
    pub extras: Extras,
}

/// What of a microbatch only some jobs have. Empty lists: nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extras {
    /// What is drawn by the place of a sample; none: nothing is dropped.
    pub place: Option<SamplePlace>,
    /// Added to the noise that the latents get, and not to the noise that is to be predicted; the shape of `noise`.
    pub perturbation: Vec<f32>,
    /// How much each latent position counts in the loss, [batch, height, width]: the loss is divided by as many positions as there are.
    pub loss_mask: Vec<f32>,
    /// How much each sample counts in the loss, beside [`Microbatch::snr_gamma`]; [batch].
    pub sample_weights: Vec<f32>,
}

/// Which samples of a job a microbatch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplePlace {
    /// The job's seed.
    pub seed: u64,
    /// Counted from 1.
    pub step: u64,
    /// The number of the first one among those of the step.
    pub first_sample: u32,
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
