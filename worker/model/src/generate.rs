//! Sampling pictures with classifier-free guidance (Ho & Salimans 2022).

use ringtune_engine::{MOST_CHUNKS, MOST_PICTURES, RgbImage};
use tch::Tensor;

use crate::api::GenerateRequest;
use crate::error::{Error, Result};
use crate::samplers::Sampler;
use crate::stable_diffusion::{StableDiffusion, check_sides, kind_of, to_vec};

impl StableDiffusion {
    /// Samples the pictures of a request, in order; `progress(done, all)` is called after each of the network's
    /// predictions (a step or a part of one) and may stop it by returning false, which gives `Ok(None)`. Latents are
    /// kept in fp32 between steps.
    ///
    /// Source: diffusers StableDiffusionPipeline with the sampler's class as its scheduler; long prompts as compel and
    /// AUTOMATIC1111 hand them to it.
    pub fn generate(
        &mut self,
        request: &GenerateRequest,
        mut progress: impl FnMut(usize, usize) -> bool,
    ) -> Result<Option<Vec<RgbImage>>> {
        let guided = request.guidance > 1.0;
        let mut sampler = Sampler::new(&self.model_files.sampler(request.sampler)?, request.steps)?;
        let latent = self.check_request(request, guided)?;
        // Adapters that are trained would have a gradient.
        let _no_gradient = tch::no_grad_guard();
        if let Ok(parameters) = self.trained() {
            parameters.refresh()?;
        }
        let batch = latent[0];
        let rows = self.learned_rows()?.unwrap_or_else(|| request.rows.to_vec());
        let request = &GenerateRequest { rows: &rows, ..*request };
        // 1. The prompt, behind the negative prompt when there is guidance, once for each picture.
        //    [1 or 2 x batch, chunks x tokens, width]
        let text = self.text_states(request, guided)?.f_repeat_interleave_self_int(batch, 0, None)?;
        // 2. Denoise.
        let mut sample = sampler.start(request.noise);
        let all_timesteps = sampler.timesteps().to_vec();
        let mut step_noises = request.step_noise.chunks_exact(sample.len());
        for (index, &timestep) in all_timesteps.iter().enumerate() {
            let seen = sampler.model_input(&sample);
            let input = Tensor::f_from_slice(&seen)?.f_view(latent)?;
            let timesteps = Tensor::f_from_slice(&vec![timestep; request.batch])?;
            let predicted = to_vec(&self.unet.forward(&input, &timesteps, &text)?)?;
            self.model_files.check_finite(&predicted, || {
                format!("what the UNet predicts in step {} of {}", index + 1, all_timesteps.len())
            })?;
            let predicted = if guided { guide(&predicted, request.guidance as f32) } else { predicted };
            sampler.step(&predicted, step_noises.next().unwrap_or_default(), &mut sample)?;
            if !progress(index + 1, all_timesteps.len()) {
                return Ok(None);
            }
        }
        // 3. Decode one by one: the decoder's tensors are the largest of all. [1, 3, height, width] to bytes
        let scaled: Vec<f32> =
            sample.iter().map(|value| value / self.model_files.vae.scaling_factor as f32).collect();
        self.model_files
            .check_finite(&scaled, || "the latents of a picture after the last step".to_string())?;
        let one = [1, latent[1], latent[2], latent[3]];
        let pictures = scaled.chunks_exact(scaled.len() / request.batch).map(|latents| {
            let picture = to_vec(&self.decode(&Tensor::f_from_slice(latents)?.f_view(one)?)?)?;
            self.model_files
                .check_finite(&picture, || "what the VAE makes of a picture's latents".to_string())?;
            Ok(to_rgb(&picture, request.height, request.width))
        });
        pictures.collect::<Result<_>>().map(Some)
    }

    /// The hidden states of the negative prompt, if there is guidance, and of the prompt:
    /// [1 or 2, chunks x tokens, width] in the UNet's precision.
    fn text_states(&self, request: &GenerateRequest, guided: bool) -> Result<Tensor> {
        let ids = if guided {
            [request.negative_ids, request.prompt_ids].concat()
        } else {
            request.prompt_ids.to_vec()
        };
        let config = &self.model_files.text;
        let (tokens, width) = (config.max_positions, config.hidden_size);
        let embeddings = self.embeddings(&ids, request.rows)?;
        let states = self.text.forward(&Tensor::f_from_slice(&embeddings)?.f_view([-1, tokens, width])?)?;
        self.model_files
            .check_finite(&to_vec(&states)?, || "what the text encoder makes of a prompt".to_string())?;
        let prompts = if guided { 2 } else { 1 };
        Ok(states.f_reshape([prompts, -1, width])?.f_to_kind(kind_of(self.precision))?)
    }

    fn check_request(&self, request: &GenerateRequest, guided: bool) -> Result<[i64; 4]> {
        let info = self.info();
        if self.model_files.text.use_attention_mask {
            let allowed = "false or absent: padding is not hidden here when pictures are drawn";
            return Err(Error::argument("use_attention_mask of text_encoder/config.json", true, allowed));
        }
        check_sides(request.height, request.width, info.vae_factor)?;
        if !(1..=MOST_PICTURES).contains(&request.batch) {
            return Err(Error::argument("batch", request.batch, format!("1 to {MOST_PICTURES}")));
        }
        let (height, width) = (request.height / info.vae_factor, request.width / info.vae_factor);
        let latents = request.batch * info.latent_channels * height * width;
        if request.noise.len() != latents {
            return Err(Error::argument("noise", format!("{} floats", request.noise.len()), latents));
        }
        let step_noise = latents * request.sampler.step_noises(request.steps);
        if request.step_noise.len() != step_noise {
            return Err(Error::argument(
                "step_noise",
                format!("{} floats", request.step_noise.len()),
                step_noise,
            ));
        }
        if !request.guidance.is_finite() {
            return Err(Error::argument("guidance", request.guidance, "a finite number"));
        }
        let (length, ids) = (info.max_text_length, request.prompt_ids.len());
        if !ids.is_multiple_of(length) || !(1..=MOST_CHUNKS).contains(&(ids / length)) {
            let allowed = format!("{length} ids in each of 1 to {MOST_CHUNKS} chunks");
            return Err(Error::argument("prompt_ids", format!("{ids} ids"), allowed));
        }
        if guided && request.negative_ids.len() != ids {
            return Err(Error::argument("negative_ids", format!("{} ids", request.negative_ids.len()), ids));
        }
        Ok([request.batch as i64, info.latent_channels as i64, height as i64, width as i64])
    }
}

/// `predicted`: without the prompt, then with it; returns without + scale · (with - without).
fn guide(predicted: &[f32], scale: f32) -> Vec<f32> {
    let (without, with) = predicted.split_at(predicted.len() / 2);
    without.iter().zip(with).map(|(without, with)| without + scale * (with - without)).collect()
}

/// `picture`: [3, height, width] about [-1, 1]; rounds half to even, as numpy does for diffusers.
fn to_rgb(picture: &[f32], height: usize, width: usize) -> RgbImage {
    let plane = height * width;
    let byte = |value: f32| ((value / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
    let data = (0..plane)
        .flat_map(|pixel| [0, 1, 2].map(|channel| byte(picture[channel * plane + pixel])))
        .collect();
    RgbImage { height, width, data }
}
