//! DPM-Solver++ 2M (Lu et al. 2022): a multistep method on the predicted clean sample, in the logarithm of the
//! signal-to-noise ratio.

use ringtune_engine::{PredictionType, SamplerKind};

use super::sigmas::{SigmaTable, check_falling, karras};
use super::{Solver, spacing};
use crate::config::{BetaSchedule, DpmSolverConfig, SamplerConfig, TimestepSpacing};
use crate::error::{Error, Result};

/// With fewer steps than this, the last one is of first order for stability.
const FEW_STEPS: usize = 15;

/// Source: diffusers DPMSolverMultistepScheduler with algorithm_type "dpmsolver++".
#[derive(Debug)]
pub(super) struct DpmSolver {
    /// One more than timesteps.
    sigmas: Vec<f32>,
    timesteps: Vec<f32>,
    prediction: PredictionType,
    options: DpmSolverConfig,
    ends_at_zero_sigma: bool,
    /// Clean prediction of the last step.
    clean_before: Vec<f32>,
}

impl DpmSolver {
    pub(super) fn new(config: &SamplerConfig, steps: usize) -> Result<Self> {
        let table = SigmaTable::new(config);
        let train = config.schedule.num_train_timesteps;
        let (timesteps, levels) = if config.kind == SamplerKind::DpmSolver2MKarras {
            let (lowest, highest) = table.range();
            let levels = karras(lowest, highest, steps);
            let cosine = config.schedule.betas == BetaSchedule::SquaredCosine;
            let whole = |step: f64| if cosine { step.trunc() } else { step.round_ties_even() };
            (levels.iter().map(|&sigma| whole(table.timestep_of(sigma))).collect(), levels)
        } else {
            let last = train - clipped(table.alphas_cumprod(), config.solver.lambda_min_clipped);
            let timesteps = timesteps(config, last, steps)?;
            let levels = timesteps.iter().map(|&step| table.at(step)).collect();
            (timesteps, levels)
        };
        let mut sigmas: Vec<f32> = levels.into_iter().map(|sigma| sigma as f32).collect();
        check_falling(&sigmas, steps)?;
        sigmas.push(table.last(config));
        Ok(DpmSolver {
            sigmas,
            timesteps: spacing::whole(&timesteps, train).into_iter().map(|step| step as f32).collect(),
            prediction: config.schedule.prediction,
            options: config.solver,
            ends_at_zero_sigma: config.ends_at_zero_sigma,
            clean_before: Vec::new(),
        })
    }

    /// Whether step `at` may look at the step before it.
    fn is_second_order(&self, at: usize) -> bool {
        let count = self.timesteps.len();
        let steady_end = self.options.euler_at_final
            || (self.options.lower_order_final && count < FEW_STEPS)
            || self.ends_at_zero_sigma;
        self.options.order >= 2 && at > 0 && !(at == count - 1 && steady_end)
    }
}

impl Solver for DpmSolver {
    fn timesteps(&self) -> &[f32] {
        &self.timesteps
    }

    /// Source: Lu et al. 2022, algorithm 2; diffusers' first and second order updates.
    fn step(&mut self, at: usize, predicted: &[f32], _noise: &[f32], sample: &mut [f32]) {
        // 1. What the network says is clean.
        let (from, to) = (Level::new(self.sigmas[at]), Level::new(self.sigmas[at + 1]));
        let clean: Vec<f32> = sample
            .iter()
            .zip(predicted)
            .map(|(&value, &output)| match self.prediction {
                PredictionType::Epsilon => (value - from.noise * output) / from.signal,
                PredictionType::VPrediction => from.signal * value - from.noise * output,
            })
            .collect();
        // 2. The first order's step, and how much of the change since the last one is added.
        let width = to.lambda() - from.lambda();
        let keep = to.noise / from.noise;
        let pull = to.signal * ((-width).exp() - 1.0);
        let correction = self.is_second_order(at).then(|| {
            let ratio = (from.lambda() - Level::new(self.sigmas[at - 1]).lambda()) / width;
            let weight = if self.options.heun {
                to.signal * (((-width).exp() - 1.0) / width + 1.0)
            } else {
                -(0.5 * pull)
            };
            (1.0 / ratio, weight)
        });
        for (index, value) in sample.iter_mut().enumerate() {
            let mut next = keep * *value - pull * clean[index];
            if let Some((slope, weight)) = correction {
                next += weight * (slope * (clean[index] - self.clean_before[index]));
            }
            *value = next;
        }
        self.clean_before = clean;
    }
}

/// A noise level in the variance-preserving form: signal^2 + noise^2 = 1.
#[derive(Clone, Copy)]
struct Level {
    signal: f32,
    noise: f32,
}

impl Level {
    fn new(sigma: f32) -> Self {
        let signal = 1.0 / (sigma * sigma + 1.0).sqrt();
        Level { signal, noise: sigma * signal }
    }

    /// Half the logarithm of the signal-to-noise ratio; infinite without noise.
    fn lambda(self) -> f32 {
        self.signal.ln() - self.noise.ln()
    }
}

/// Number of timesteps at the noisy end with a lambda below `least`.
fn clipped(alphas_cumprod: &[f32], least: f64) -> usize {
    let lambda = |alpha: &f32| alpha.sqrt().ln() - (1.0 - alpha).sqrt().ln();
    alphas_cumprod.iter().rev().take_while(|alpha| f64::from(lambda(alpha)) < least).count()
}

/// The timesteps below `last`: one more than the steps, without the lowest, but for trailing ones.
fn timesteps(config: &SamplerConfig, last: usize, steps: usize) -> Result<Vec<f64>> {
    if last == 0 {
        let given = config.solver.lambda_min_clipped;
        return Err(Error::argument("lambda_min_clipped", given, "a number that leaves timesteps"));
    }
    let mut timesteps = match config.spacing {
        TimestepSpacing::Leading => spacing::leading(last / (steps + 1), steps + 1, config.steps_offset),
        TimestepSpacing::Linspace => {
            let exact = spacing::linspace((last - 1) as f64, steps + 1);
            exact.into_iter().map(f64::round_ties_even).collect()
        }
        TimestepSpacing::Trailing => {
            let train = config.schedule.num_train_timesteps;
            return Ok(spacing::trailing(last as f64, train as f64 / steps as f64));
        }
    };
    timesteps.truncate(steps);
    Ok(timesteps)
}
