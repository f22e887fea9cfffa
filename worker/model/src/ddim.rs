//! The DDIM sampler (Song et al. 2021) with eta 0: every step is determined by the one before.

use crate::api::PredictionType;
use crate::config::{SchedulerConfig, TimestepSpacing};
use crate::error::{Error, Result};
use crate::schedule::NoiseSchedule;

/// A sampler for one number of steps. Source: diffusers DDIMScheduler.
#[derive(Debug, Clone)]
pub struct DdimSampler {
    alphas_cumprod: Vec<f32>,
    final_alpha: f32,
    prediction: PredictionType,
    clip: Option<f32>,
    stride: i64,
    timesteps: Vec<i64>,
}

impl DdimSampler {
    /// `steps`: 1 ..= num_train_timesteps.
    pub fn new(config: &SchedulerConfig, steps: usize) -> Result<Self> {
        let train = config.num_train_timesteps;
        if steps == 0 || steps > train {
            return Err(Error::argument("steps", steps, format!("1 to {train}")));
        }
        let alphas_cumprod = NoiseSchedule::new(config).alphas_cumprod().to_vec();
        let mut timesteps = timesteps(config, steps);
        // An offset can push the first timestep over the end of the schedule.
        timesteps.iter_mut().for_each(|step| *step = (*step).clamp(0, train as i64 - 1));
        Ok(DdimSampler {
            final_alpha: if config.set_alpha_to_one { 1.0 } else { alphas_cumprod[0] },
            alphas_cumprod,
            prediction: config.prediction,
            clip: config.clip_sample.map(|range| range as f32),
            stride: (train / steps) as i64,
            timesteps,
        })
    }

    /// The timesteps to visit, from the noisiest.
    pub fn timesteps(&self) -> &[i64] {
        &self.timesteps
    }

    /// Replaces `sample` at `timestep` with the one a stride earlier, given what the network predicted.
    ///
    /// Source: Song et al. 2021, equation 12; diffusers DDIMScheduler.step.
    pub fn step(&self, predicted: &[f32], timestep: i64, sample: &mut [f32]) {
        let alpha_of = |step: i64| {
            usize::try_from(step)
                .ok()
                .and_then(|step| self.alphas_cumprod.get(step))
                .copied()
                .unwrap_or(self.final_alpha)
        };
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

fn timesteps(config: &SchedulerConfig, steps: usize) -> Vec<i64> {
    let train = config.num_train_timesteps;
    match config.spacing {
        TimestepSpacing::Leading => {
            let stride = (train / steps) as i64;
            (0..steps as i64).rev().map(|index| index * stride + config.steps_offset).collect()
        }
        TimestepSpacing::Trailing => {
            let stride = train as f64 / steps as f64;
            (0..steps)
                .map(|index| (train as f64 - index as f64 * stride).round_ties_even() as i64 - 1)
                .collect()
        }
        TimestepSpacing::Linspace => {
            let stride = if steps == 1 { 0.0 } else { (train - 1) as f64 / (steps - 1) as f64 };
            (0..steps).rev().map(|index| (index as f64 * stride).round_ties_even() as i64).collect()
        }
    }
}
