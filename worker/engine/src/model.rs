//! Models: which to load and how, and what they say.

use std::path::PathBuf;

use crate::SamplerKind;

/// Which model to load, and how.
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

/// What the engine lays frozen weights out for ([`TextualInversion::lay_out`](crate::TextualInversion::lay_out)). It decides no
/// bit, but how fast steps are: a model that was laid out for other sizes is loaded again, so that no job is slow for the one
/// before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingSize {
    /// Samples in a microbatch.
    pub batch: usize,
    /// Pixels of a side.
    pub resolution: usize,
}

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

/// What a caller says about a model beside where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ModelOptions {
    /// "fp16" of a folder's `model.fp16.safetensors`; empty: none.
    pub variant: String,
    /// What the UNet predicts, instead of what the model says, or where a single file cannot say it.
    pub prediction_type: Option<PredictionType>,
    /// Train on the model's schedule shifted so that its last step is pure noise (Lin et al. 2023, algorithm 1;
    /// diffusers' `rescale_betas_zero_snr`). Only where the velocity is predicted. Sampling follows the model.
    pub rescale_zero_snr: bool,
    /// The UNet's weights are drawn: no file of them is needed, but the configuration alone. Without a file they are zeros until
    /// they are trained.
    pub draws_unet: bool,
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

/// What a model's config files say that a job has to know.
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
    /// Numbers of all its tensors.
    pub parameters: u64,
    /// The side in pixels the UNet was made for (`sample_size` x factor), when its config says so.
    pub native_resolution: Option<usize>,
}
