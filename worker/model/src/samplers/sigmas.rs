//! Noise levels sigma = sqrt((1 - a) / a), by which Euler, LMS and DPM-Solver count (Karras et al. 2022).

use ringtune_engine::PredictionType;

use super::spacing;
use crate::config::{SamplerConfig, TimestepSpacing};
use crate::error::{Error, Result};
use crate::schedule::NoiseSchedule;

/// The noise level at every timestep of the schedule, rising.
#[derive(Debug)]
pub(super) struct SigmaTable {
    alphas_cumprod: Vec<f32>,
    sigmas: Vec<f32>,
}

impl SigmaTable {
    pub(super) fn new(config: &SamplerConfig) -> Self {
        let mut alphas_cumprod = NoiseSchedule::new(&config.schedule).alphas_cumprod().to_vec();
        if config.schedule.rescale_zero_snr
            && let Some(last) = alphas_cumprod.last_mut()
        {
            // Close to 0 without being 0, so that the first level is finite, as diffusers has it.
            *last = 2f32.powi(-24);
        }
        let sigmas = alphas_cumprod.iter().map(|alpha| ((1.0 - alpha) / alpha).sqrt()).collect();
        SigmaTable { alphas_cumprod, sigmas }
    }

    /// The cumulative products that the levels come from.
    pub(super) fn alphas_cumprod(&self) -> &[f32] {
        &self.alphas_cumprod
    }

    /// The lowest and the highest level.
    pub(super) fn range(&self) -> (f64, f64) {
        (f64::from(self.sigmas[0]), f64::from(self.sigmas[self.sigmas.len() - 1]))
    }

    /// The level at a timestep, linear between two. Source: numpy.interp.
    pub(super) fn at(&self, timestep: f64) -> f64 {
        let last = self.sigmas.len() - 1;
        let below = (timestep.max(0.0).floor() as usize).min(last);
        let low = f64::from(self.sigmas[below]);
        if below == last {
            return low;
        }
        let slope = f64::from(self.sigmas[below + 1]) - low;
        slope * (timestep.max(0.0) - below as f64) + low
    }

    /// The timestep of a level, linear between the logarithms of two. Source: diffusers _sigma_to_t.
    pub(super) fn timestep_of(&self, sigma: f64) -> f64 {
        let log_sigma = sigma.max(1e-10).ln();
        let logarithm = |index: usize| self.sigmas[index].ln();
        let reached = self.sigmas.partition_point(|level| f64::from(level.ln()) <= log_sigma);
        let below = reached.saturating_sub(1).min(self.sigmas.len().saturating_sub(2));
        let above = (below + 1).min(self.sigmas.len() - 1);
        let (low, high) = (logarithm(below), logarithm(above));
        let weight = ((f64::from(low) - log_sigma) / f64::from(low - high)).clamp(0.0, 1.0);
        (1.0 - weight) * below as f64 + weight * above as f64
    }

    /// The level that the last step ends at.
    pub(super) fn last(&self, config: &SamplerConfig) -> f32 {
        if config.ends_at_zero_sigma { 0.0 } else { self.sigmas[0] }
    }
}

/// `count` levels from the highest to the lowest. Source: Karras et al. 2022, equation 5, with rho = 7.
pub(super) fn karras(lowest: f64, highest: f64, count: usize) -> Vec<f64> {
    const RHO: f64 = 7.0;
    let (low, high) = (lowest.powf(1.0 / RHO), highest.powf(1.0 / RHO));
    let ramp = spacing::linspace(1.0, count);
    ramp.iter().rev().map(|share| (high + share * (low - high)).powf(RHO)).collect()
}

/// Refuses levels that do not fall: a step between two equal ones would divide by zero.
pub(super) fn check_falling(sigmas: &[f32], steps: usize) -> Result<()> {
    if sigmas.windows(2).all(|pair| pair[0] > pair[1]) {
        return Ok(());
    }
    Err(Error::argument("steps", steps, "fewer: two of them would have the same noise level"))
}

/// The levels and timesteps of one walk in the way of k-diffusion: Euler, Euler ancestral and LMS.
#[derive(Debug)]
pub(super) struct SigmaPath {
    /// One more than timesteps.
    pub(super) sigmas: Vec<f32>,
    pub(super) timesteps: Vec<f32>,
    prediction: PredictionType,
    initial_scale: f32,
}

impl SigmaPath {
    pub(super) fn new(config: &SamplerConfig, steps: usize) -> Result<Self> {
        let table = SigmaTable::new(config);
        let mut timesteps: Vec<f32> =
            spacing::timesteps(config, steps).into_iter().map(|step| step as f32).collect();
        let mut levels: Vec<f64> = timesteps.iter().map(|&step| table.at(f64::from(step))).collect();
        if config.karras_sigmas {
            levels = karras(levels[levels.len() - 1], levels[0], steps);
            timesteps = levels.iter().map(|&sigma| table.timestep_of(sigma) as f32).collect();
        }
        let mut sigmas: Vec<f32> = levels.into_iter().map(|sigma| sigma as f32).collect();
        check_falling(&sigmas, steps)?;
        let highest = sigmas[0];
        sigmas.push(table.last(config));
        let initial_scale = match config.spacing {
            TimestepSpacing::Leading => (highest * highest + 1.0).sqrt(),
            TimestepSpacing::Trailing | TimestepSpacing::Linspace => highest,
        };
        Ok(SigmaPath { sigmas, timesteps, prediction: config.schedule.prediction, initial_scale })
    }

    pub(super) fn initial_scale(&self) -> f32 {
        self.initial_scale
    }

    /// The sample at level sigma has variance sigma^2 + 1; the network wants 1.
    pub(super) fn input_divisor(&self, at: usize) -> f32 {
        let sigma = self.sigmas[at.min(self.sigmas.len() - 1)];
        (sigma * sigma + 1.0).sqrt()
    }

    /// d sample / d sigma: the direction of the noise. Source: Karras et al. 2022, equation 3.
    pub(super) fn derivative(&self, at: usize, value: f32, predicted: f32) -> f32 {
        let sigma = self.sigmas[at];
        let clean = match self.prediction {
            PredictionType::Epsilon => value - sigma * predicted,
            PredictionType::VPrediction => {
                let variance = sigma * sigma + 1.0;
                predicted * (-sigma / variance.sqrt()) + value / variance
            }
        };
        (value - clean) / sigma
    }
}
