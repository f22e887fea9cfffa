//! The diffusion's forward process: how much noise each timestep adds (Ho et al. 2020).
//!
//! Variances are computed in fp32 as diffusers' DDPMScheduler does, without libtorch.

use ringtune_engine::PredictionType;
use tch::{Kind, Tensor};

use crate::config::{BetaSchedule, SchedulerConfig};
use crate::error::{Error, Result};

/// Cumulative products of 1 - beta, one per timestep.
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseSchedule {
    alphas_cumprod: Vec<f32>,
    prediction: PredictionType,
}

impl NoiseSchedule {
    /// Builds the schedule that scheduler_config.json describes.
    pub fn new(config: &SchedulerConfig) -> Self {
        let steps = config.num_train_timesteps;
        let mut betas = match &config.betas {
            BetaSchedule::Linear { start, end } => linspace(*start, *end, steps),
            BetaSchedule::ScaledLinear { start, end } => {
                linspace(start.sqrt(), end.sqrt(), steps).into_iter().map(|root| root * root).collect()
            }
            BetaSchedule::SquaredCosine => squared_cosine(steps),
            BetaSchedule::Trained(betas) => betas.iter().map(|beta| *beta as f32).collect(),
        };
        if config.rescale_zero_snr {
            betas = rescale_to_zero_snr(&betas);
        }
        NoiseSchedule { alphas_cumprod: cumulative_alphas(&betas), prediction: config.prediction }
    }

    /// The cumulative product at each timestep.
    pub fn alphas_cumprod(&self) -> &[f32] {
        &self.alphas_cumprod
    }

    /// Prediction type of the network.
    pub fn prediction(&self) -> PredictionType {
        self.prediction
    }

    /// The weights of signal and noise, each [batch, 1, 1, 1] in `kind`, rounded where diffusers rounds.
    fn weights(&self, timesteps: &[i64], kind: Kind) -> Result<(Tensor, Tensor)> {
        let alphas: Vec<f32> = timesteps
            .iter()
            .map(|&step| usize::try_from(step).ok().and_then(|step| self.alphas_cumprod.get(step)).copied())
            .collect::<Option<_>>()
            .ok_or_else(|| {
                Error::argument(
                    "timesteps",
                    format!("{timesteps:?}"),
                    format!("each from 0 to {}", self.alphas_cumprod.len() - 1),
                )
            })?;
        let alphas = Tensor::f_from_slice(&alphas)?.f_to_kind(kind)?.f_view([-1, 1, 1, 1])?;
        let signal = alphas.f_sqrt()?;
        let noise = alphas.f_neg()?.f_add_scalar(1.0)?.f_sqrt()?;
        Ok((signal, noise))
    }

    /// sqrt(a) · latents + sqrt(1 - a) · noise, in the latents' kind.
    ///
    /// `latents`, `noise`: [batch, channels, height, width]; `timesteps`: one per sample, 0 .. length.
    /// Source: Ho et al. 2020, equation 4; diffusers DDPMScheduler.add_noise.
    pub fn add_noise(&self, latents: &Tensor, noise: &Tensor, timesteps: &[i64]) -> Result<Tensor> {
        let (signal_weight, noise_weight) = self.weights(timesteps, latents.f_kind()?)?;
        Ok(signal_weight.f_mul(latents)?.f_add(&noise_weight.f_mul(noise)?)?)
    }

    /// The network's target: the noise, or the velocity
    /// sqrt(a) · noise - sqrt(1 - a) · latents (Salimans & Ho 2022; diffusers get_velocity).
    pub fn target(&self, latents: &Tensor, noise: &Tensor, timesteps: &[i64]) -> Result<Tensor> {
        match self.prediction {
            PredictionType::Epsilon => Ok(noise.shallow_clone()),
            PredictionType::VPrediction => {
                let (signal_weight, noise_weight) = self.weights(timesteps, latents.f_kind()?)?;
                Ok(signal_weight.f_mul(noise)?.f_sub(&noise_weight.f_mul(latents)?)?)
            }
        }
    }
}

/// torch.linspace in fp32: counted from the nearer end.
fn linspace(start: f64, end: f64, steps: usize) -> Vec<f32> {
    let (start, end) = (start as f32, end as f32);
    if steps == 1 {
        return vec![start];
    }
    let step = (end - start) / (steps - 1) as f32;
    (0..steps)
        .map(|index| {
            if index < steps / 2 {
                start + step * index as f32
            } else {
                end - step * (steps - index - 1) as f32
            }
        })
        .collect()
}

/// Nichol & Dhariwal 2021, equation 17, in double precision; diffusers betas_for_alpha_bar.
fn squared_cosine(steps: usize) -> Vec<f32> {
    let alpha_bar = |time: f64| ((time + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
    let count = steps as f64;
    (0..steps)
        .map(|index| {
            (1.0 - alpha_bar((index + 1) as f64 / count) / alpha_bar(index as f64 / count)).min(0.999) as f32
        })
        .collect()
}

/// torch.cumprod in fp32 keeps its running product in double precision.
fn cumulative_alphas(betas: &[f32]) -> Vec<f32> {
    let mut product = 1.0f64;
    betas
        .iter()
        .map(|beta| {
            product *= f64::from(1.0 - beta);
            product as f32
        })
        .collect()
}

/// Lin et al. 2023, algorithm 1; diffusers rescale_zero_terminal_snr.
fn rescale_to_zero_snr(betas: &[f32]) -> Vec<f32> {
    let mut roots: Vec<f32> = cumulative_alphas(betas).into_iter().map(f32::sqrt).collect();
    let (first, last) = (roots[0], roots[roots.len() - 1]);
    for root in &mut roots {
        *root = (*root - last) * (first / (first - last));
    }
    let squares: Vec<f32> = roots.iter().map(|root| root * root).collect();
    (0..squares.len())
        .map(|index| 1.0 - if index == 0 { squares[0] } else { squares[index] / squares[index - 1] })
        .collect()
}
