//! The DDIM sampler (Song et al. 2021) with eta 0: every step is determined by the one before.

use ringtune_engine::PredictionType;

use super::{Solver, spacing};
use crate::config::SamplerConfig;
use crate::schedule::NoiseSchedule;

/// Source: diffusers DDIMScheduler.
#[derive(Debug)]
pub(super) struct Ddim {
    alphas_cumprod: Vec<f32>,
    final_alpha: f32,
    prediction: PredictionType,
    clip: Option<f32>,
    stride: i64,
    whole: Vec<i64>,
    timesteps: Vec<f32>,
}

impl Ddim {
    pub(super) fn new(config: &SamplerConfig, steps: usize) -> Self {
        let train = config.schedule.num_train_timesteps;
        let alphas_cumprod = NoiseSchedule::new(&config.schedule).alphas_cumprod().to_vec();
        let whole = spacing::whole(&spacing::timesteps(config, steps), train);
        Ddim {
            final_alpha: if config.set_alpha_to_one { 1.0 } else { alphas_cumprod[0] },
            alphas_cumprod,
            prediction: config.schedule.prediction,
            clip: config.clip_sample.map(|range| range as f32),
            stride: (train / steps) as i64,
            timesteps: whole.iter().map(|&step| step as f32).collect(),
            whole,
        }
    }
}

impl Solver for Ddim {
    fn timesteps(&self) -> &[f32] {
        &self.timesteps
    }

    /// Source: Song et al. 2021, equation 12; diffusers DDIMScheduler.step.
    fn step(&mut self, at: usize, predicted: &[f32], _noise: &[f32], sample: &mut [f32]) {
        let alpha_of = |step: i64| {
            usize::try_from(step)
                .ok()
                .and_then(|step| self.alphas_cumprod.get(step))
                .copied()
                .unwrap_or(self.final_alpha)
        };
        let timestep = self.whole[at];
        let (alpha, previous) = (alpha_of(timestep), alpha_of(timestep - self.stride));
        let (signal, noise) = (alpha.sqrt(), (1.0 - alpha).sqrt());
        let (signal_before, noise_before) = (previous.sqrt(), (1.0 - previous).sqrt());
        for (value, &output) in sample.iter_mut().zip(predicted) {
            let (mut clean, epsilon) = match self.prediction {
                PredictionType::Epsilon => ((*value - noise * output) / signal, output),
                PredictionType::VPrediction => {
                    (signal * *value - noise * output, signal * output + noise * *value)
                }
            };
            if let Some(range) = self.clip {
                clean = clean.clamp(-range, range);
            }
            *value = signal_before * clean + noise_before * epsilon;
        }
    }
}
