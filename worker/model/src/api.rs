//! The inputs of a call, borrowed: no libtorch type among them. All else that crosses the crate's boundary is the
//! engine's own plain data ([`ringtune_engine`]).

use ringtune_engine::{Extras, ImageRequest, SamplerKind};

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
    /// What only some jobs have.
    pub extras: &'a Extras,
}

/// Nothing of that.
pub static NO_EXTRAS: Extras =
    Extras { place: None, perturbation: Vec::new(), loss_mask: Vec::new(), sample_weights: Vec::new() };

impl<'a> From<&'a ringtune_engine::Microbatch> for Microbatch<'a> {
    fn from(owned: &'a ringtune_engine::Microbatch) -> Self {
        Microbatch {
            batch: owned.batch,
            latent_height: owned.latent_height,
            latent_width: owned.latent_width,
            latents: &owned.latents,
            noise: &owned.noise,
            timesteps: &owned.timesteps,
            input_ids: &owned.input_ids,
            rows: &owned.rows,
            snr_gamma: owned.snr_gamma,
            extras: &owned.extras,
        }
    }
}

/// Pictures of one prompt to sample with classifier-free guidance, all in the same passes through the UNet.
#[derive(Debug, Clone, Copy)]
pub struct GenerateRequest<'a> {
    /// Pictures, 1 to [`ringtune_engine::MOST_PICTURES`].
    pub batch: usize,
    /// Pixel rows, a multiple of the VAE's factor.
    pub height: usize,
    /// Pixel columns, a multiple of the VAE's factor.
    pub width: usize,
    /// Token ids of the prompt, [chunks, max_text_length], 1 to [`ringtune_engine::MOST_CHUNKS`] chunks. Each chunk goes through the text
    /// encoder by itself; the UNet sees their states one behind the other.
    pub prompt_ids: &'a [i64],
    /// Token ids of the negative (usually empty) prompt, in as many chunks; unused when guidance <= 1.
    pub negative_ids: &'a [i64],
    /// Learned rows, [num_vectors, text_width]; may be empty.
    pub rows: &'a [f32],
    /// The sampler.
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

impl<'a> From<&'a ImageRequest> for GenerateRequest<'a> {
    fn from(owned: &'a ImageRequest) -> Self {
        GenerateRequest {
            batch: owned.batch,
            height: owned.height,
            width: owned.width,
            prompt_ids: &owned.prompt_ids,
            negative_ids: &owned.negative_ids,
            rows: &owned.rows,
            sampler: owned.sampler,
            steps: owned.steps,
            guidance: owned.guidance,
            noise: &owned.noise,
            step_noise: &owned.step_noise,
        }
    }
}
