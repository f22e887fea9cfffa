//! A microbatch of textual inversion (Gal et al. 2023): loss and gradient of the learned rows.
//!
//! Source of the arithmetic: diffusers examples/textual_inversion/textual_inversion.py.

use std::time::Instant;

use ringtune_engine::{Extras, Gradient, Precision};
use tch::{Reduction, Tensor};

use crate::api::Microbatch;
use crate::error::{Error, Result};
use crate::min_snr;
use crate::native;
use crate::profile::{self, Stretch};
use crate::stable_diffusion::{StableDiffusion, to_vec};

/// Maximal bytes of memory reserved ahead: about what the system clears while a model is hashed beside it.
const MOST_RESERVED: usize = 1 << 30;

/// A microbatch as the UNet sees it.
#[derive(Debug)]
pub(crate) struct Noised {
    /// [batch, channels, height, width] fp32.
    pub(crate) noisy: Tensor,
    /// [batch].
    pub(crate) timesteps: Tensor,
    /// What is to be predicted, as `noisy`.
    pub(crate) target: Tensor,
}

impl StableDiffusion {
    /// Loss and gradient of one microbatch. The only leaf of the computation are the token embeddings: no
    /// gradient of any weight is ever made.
    ///
    /// The same input, thread count and machine give the same bits.
    pub fn gradient(&self, microbatch: &Microbatch) -> Result<Gradient> {
        self.check(microbatch)?;
        let _step = Stretch::begin(profile::STEP);
        let started = Instant::now();
        // 1. Token embeddings, the leaf. [batch, tokens, width] fp32
        let leaf = self.token_embeddings(microbatch)?.f_set_requires_grad(true)?;
        // 2. The loss. The text in fp32 whatever the job's precision; the UNet rounds it for itself.
        let loss = self.loss_of(microbatch, &self.text.forward(&leaf)?)?;
        let loss_value = to_vec(&loss.f_view([1])?)?[0];
        let forward_seconds = started.elapsed().as_secs_f64();
        // 3. Backward to the leaf alone, then one row's uses added up in order of place.
        let started = Instant::now();
        let gradients = Tensor::f_run_backward(&[&loss], &[&leaf], false, false)?;
        let leaf_gradient = to_vec(&gradients[0])?;
        let grad = self.sum_rows(microbatch, &leaf_gradient);
        let finite = loss_value.is_finite() && grad.iter().all(|value| value.is_finite());
        let backward_seconds = started.elapsed().as_secs_f64();
        Ok(Gradient { loss: loss_value, grad, finite, forward_seconds, backward_seconds })
    }

    /// The loss of one microbatch alone, without what a backward pass would need; its bits are those of
    /// [`StableDiffusion::gradient`]'s.
    pub fn loss(&self, microbatch: &Microbatch) -> Result<f32> {
        self.check(microbatch)?;
        let text = self.text.forward(&self.token_embeddings(microbatch)?)?;
        Ok(to_vec(&self.loss_of(microbatch, &text)?.f_view([1])?)?[0])
    }

    /// Lays the frozen weights out for microbatches of `batch` samples of `height` x `width` latents, as the first gradient
    /// of such a one would. A job begins with this: where sizes differ from microbatch to microbatch, no rank is slower than
    /// others for what it happened to meet first. No bit depends on it. In fp32 nothing is laid out, and memory is got ready for
    /// the first picture.
    ///
    /// # Errors
    /// A number out of its range: see [`StableDiffusion::gradient`].
    pub fn lay_out(&self, batch: usize, height: usize, width: usize) -> Result<()> {
        check_shape(batch, height, width)?;
        let text = self.adapters.as_ref().map_or(self.whole.is_none(), |adapters| adapters.train_text);
        self.unet.lay_out([batch, height, width].map(|side| side as i64), text)?;
        if self.precision == Precision::Fp32 {
            let vae = &self.model_files.vae;
            let bytes = vae.encoder_bytes(height * vae.factor(), width * vae.factor());
            native::reserve_memory(bytes.min(MOST_RESERVED))?;
        }
        Ok(())
    }

    /// [batch, tokens, width] fp32.
    pub(crate) fn token_embeddings(&self, microbatch: &Microbatch) -> Result<Tensor> {
        let config = &self.model_files.text;
        let shape = [microbatch.batch as i64, config.max_positions, config.hidden_size];
        let embeddings = self.embeddings(microbatch.input_ids, microbatch.rows)?;
        Ok(Tensor::f_from_slice(&embeddings)?.f_view(shape)?)
    }

    /// The loss, [] fp32, of a microbatch whose captions' hidden states are `text`, [batch, tokens, width] fp32.
    pub(crate) fn loss_of(&self, microbatch: &Microbatch, text: &Tensor) -> Result<Tensor> {
        let noised = self.noised(microbatch)?;
        let predicted = self.unet.forward(&noised.noisy, &noised.timesteps, text)?;
        self.loss_between(microbatch, &noised, &predicted)
    }

    /// What the UNet gets to see of a microbatch, and what it is to predict.
    pub(crate) fn noised(&self, microbatch: &Microbatch) -> Result<Noised> {
        let latent = self.latent_shape(microbatch);
        let latents = Tensor::f_from_slice(microbatch.latents)?.f_view(latent)?;
        let noise = Tensor::f_from_slice(microbatch.noise)?.f_view(latent)?;
        let noisy = match &microbatch.extras.perturbation[..] {
            [] => self.schedule.add_noise(&latents, &noise, microbatch.timesteps)?,
            given => {
                let perturbed = noise.f_add(&Tensor::f_from_slice(given)?.f_view(latent)?)?;
                self.schedule.add_noise(&latents, &perturbed, microbatch.timesteps)?
            }
        };
        let target = self.schedule.target(&latents, &noise, microbatch.timesteps)?;
        Ok(Noised { noisy, timesteps: Tensor::f_from_slice(microbatch.timesteps)?, target })
    }

    /// The loss of a prediction, [] fp32.
    pub(crate) fn loss_between(
        &self,
        microbatch: &Microbatch,
        noised: &Noised,
        predicted: &Tensor,
    ) -> Result<Tensor> {
        let Extras { loss_mask, sample_weights, .. } = microbatch.extras;
        let mut weights = match microbatch.snr_gamma {
            None => sample_weights.clone(),
            Some(gamma) => min_snr::weights(&self.schedule, microbatch.timesteps, gamma)?,
        };
        if microbatch.snr_gamma.is_some() {
            weights.iter_mut().zip(sample_weights).for_each(|(weight, own)| *weight *= own);
        }
        if weights.is_empty() && loss_mask.is_empty() {
            return Ok(predicted.f_mse_loss(&noised.target, Reduction::Mean)?);
        }
        let errors = predicted.f_mse_loss(&noised.target, Reduction::None)?;
        let errors = match &loss_mask[..] {
            [] => errors,
            mask => {
                let [batch, _, height, width] = self.latent_shape(microbatch);
                errors.f_mul(&Tensor::f_from_slice(mask)?.f_view([batch, 1, height, width])?)?
            }
        };
        weighted_mean(&errors, &weights)
    }

    /// [batch, channels, height, width].
    fn latent_shape(&self, microbatch: &Microbatch) -> [i64; 4] {
        let (height, width) = (microbatch.latent_height as i64, microbatch.latent_width as i64);
        [microbatch.batch as i64, self.model_files.vae.latent_channels, height, width]
    }

    /// The gradient of each learned row: that of its uses, added up in order of place.
    pub(crate) fn sum_rows(&self, microbatch: &Microbatch, leaf_gradient: &[f32]) -> Vec<f32> {
        let width = self.model_files.text.hidden_size as usize;
        let vocabulary = self.model_files.text.vocab_size;
        let mut rows = vec![0f32; microbatch.rows.len()];
        for (place, &id) in leaf_gradient.chunks_exact(width).zip(microbatch.input_ids) {
            if id >= vocabulary {
                let start = (id - vocabulary) as usize * width;
                for (sum, value) in rows[start..start + width].iter_mut().zip(place) {
                    *sum += value;
                }
            }
        }
        rows
    }

    /// That a microbatch has all its numbers; the learned rows are not looked at.
    pub(crate) fn check_microbatch(&self, microbatch: &Microbatch) -> Result<()> {
        let info = self.info();
        let batch = microbatch.batch;
        check_shape(batch, microbatch.latent_height, microbatch.latent_width)?;
        let latent = batch * info.latent_channels * microbatch.latent_height * microbatch.latent_width;
        for (field, found, expected) in [
            ("latents", microbatch.latents.len(), latent),
            ("noise", microbatch.noise.len(), latent),
            ("timesteps", microbatch.timesteps.len(), batch),
            ("input_ids", microbatch.input_ids.len(), batch * info.max_text_length),
        ] {
            if found != expected {
                return Err(Error::argument(field, format!("{found} values"), expected));
            }
        }
        let Extras { perturbation, loss_mask, sample_weights, .. } = microbatch.extras;
        for (field, found, expected) in [
            ("perturbation", perturbation.len(), latent),
            ("loss_mask", loss_mask.len(), latent / info.latent_channels.max(1)),
            ("sample_weights", sample_weights.len(), batch),
        ] {
            if found != 0 && found != expected {
                return Err(Error::argument(
                    field,
                    format!("{found} values"),
                    format!("none, or {expected}"),
                ));
            }
        }
        Ok(())
    }

    fn check(&self, microbatch: &Microbatch) -> Result<()> {
        self.check_microbatch(microbatch)?;
        if microbatch.rows.is_empty() {
            return Err(Error::argument(
                "rows",
                "empty",
                format!("num_vectors x {} floats", self.model_files.text.hidden_size),
            ));
        }
        Ok(())
    }
}

/// Numbers that a microbatch of latents can have.
fn check_shape(batch: usize, height: usize, width: usize) -> Result<()> {
    if batch == 0 || batch > 4096 {
        return Err(Error::argument("batch", batch, "1 to 4096"));
    }
    for (field, side) in [("latent_height", height), ("latent_width", width)] {
        if side == 0 || side > 2048 {
            return Err(Error::argument(field, side, "1 to 2048"));
        }
    }
    Ok(())
}

/// The mean over the samples of each one's mean times its weight, [] in fp32; `errors`: [batch, channels, height, width], `weights`:
/// [batch], or empty: all count alike.
/// Source: diffusers examples/text_to_image/train_text_to_image.py, with --snr_gamma.
fn weighted_mean(errors: &Tensor, weights: &[f32]) -> Result<Tensor> {
    let samples = errors.f_mean_dim(&[1i64, 2, 3][..], false, None)?;
    if weights.is_empty() {
        return Ok(samples.f_mean(None)?);
    }
    Ok(samples.f_mul(&Tensor::f_from_slice(weights)?)?.f_mean(None)?)
}

#[cfg(test)]
#[path = "textual_inversion_tests.rs"]
mod tests;
