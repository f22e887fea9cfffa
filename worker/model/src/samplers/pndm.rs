//! Pseudo numerical methods for diffusion models (Liu et al. 2022): a linear multistep method of order 4, whose first
//! values come from Runge-Kutta steps or, with `skip_prk_steps`, from lower orders (what others call PLMS).

use ringtune_engine::PredictionType;

use super::{Solver, spacing};
use crate::config::SamplerConfig;
use crate::error::{Error, Result};
use crate::schedule::NoiseSchedule;

/// Predictions in each Runge-Kutta step, and values that the multistep method looks at.
const ORDER: usize = 4;
/// Runge-Kutta steps before the multistep method has enough values, the current one included.
const RUNGE_KUTTA_STEPS: usize = 3;

/// Source: diffusers PNDMScheduler.
#[derive(Debug)]
pub(super) struct Pndm {
    alphas_cumprod: Vec<f32>,
    final_alpha: f32,
    prediction: PredictionType,
    stride: i64,
    /// Number of timesteps of Runge-Kutta steps.
    runge_kutta: usize,
    whole: Vec<i64>,
    timesteps: Vec<f32>,
    /// The last predictions, at most [`ORDER`], the newest last.
    history: Vec<Vec<f32>>,
    /// The weighted sum of a Runge-Kutta step's predictions so far.
    sum: Vec<f32>,
    /// Start of the Runge-Kutta step, or of the first step.
    origin: Vec<f32>,
}

impl Pndm {
    pub(super) fn new(config: &SamplerConfig, steps: usize) -> Result<Self> {
        let train = config.schedule.num_train_timesteps;
        let stride = (train / steps) as i64;
        if !config.skip_prk_steps && steps < ORDER {
            let allowed = format!("{ORDER} to {train}, for the model's PNDM starts with Runge-Kutta steps");
            return Err(Error::argument("steps", steps, allowed));
        }
        let visited = spacing::whole(&spacing::timesteps(config, steps), train);
        let (whole, runge_kutta) = if config.skip_prk_steps {
            (with_second_twice(&visited), 0)
        } else {
            let mut whole = runge_kutta_timesteps(&visited, stride / 2, train);
            whole.extend(&visited[RUNGE_KUTTA_STEPS..]);
            (whole, RUNGE_KUTTA_STEPS * ORDER)
        };
        let alphas_cumprod = NoiseSchedule::new(&config.schedule).alphas_cumprod().to_vec();
        Ok(Pndm {
            final_alpha: if config.set_alpha_to_one { 1.0 } else { alphas_cumprod[0] },
            alphas_cumprod,
            prediction: config.schedule.prediction,
            stride,
            runge_kutta,
            timesteps: whole.iter().map(|&step| step as f32).collect(),
            whole,
            history: Vec::with_capacity(ORDER),
            sum: Vec::new(),
            origin: Vec::new(),
        })
    }

    /// Takes one of a Runge-Kutta step's four predictions. Source: Liu et al. 2022, equation 13; diffusers step_prk.
    fn runge_kutta_step(&mut self, at: usize, predicted: &[f32], sample: &mut [f32]) {
        let weight = if matches!(at % ORDER, 0 | 3) { 1.0 / 6.0 } else { 1.0 / 3.0 };
        let part = predicted.iter().map(|value| weight as f32 * value);
        if at.is_multiple_of(ORDER) {
            self.sum = part.collect();
            self.history.push(predicted.to_vec());
            self.origin = sample.to_vec();
        } else {
            self.sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        let slope = if at % ORDER == ORDER - 1 { self.sum.as_slice() } else { predicted };
        let from = self.whole[at / ORDER * ORDER];
        let to = self.whole[at] - if at.is_multiple_of(2) { self.stride / 2 } else { 0 };
        let transfer = self.transfer(from, to);
        for ((value, &origin), &slope) in sample.iter_mut().zip(&self.origin).zip(slope) {
            *value = transfer.apply(origin, slope);
        }
    }

    /// Source: Liu et al. 2022, equation 12; diffusers step_plms.
    fn multistep(&mut self, at: usize, predicted: &[f32], sample: &mut [f32]) {
        let (mut from, mut to) = (self.whole[at], self.whole[at] - self.stride);
        // The second prediction improves the first step, which is done again.
        let again = at == 1 && self.runge_kutta == 0;
        if again {
            (from, to) = (from + self.stride, from);
            sample.copy_from_slice(&self.origin);
        } else {
            if self.history.len() == ORDER {
                self.history.remove(0);
            }
            self.history.push(predicted.to_vec());
            if at == 0 {
                self.origin = sample.to_vec();
            }
        }
        let transfer = self.transfer(from, to);
        for (index, value) in sample.iter_mut().enumerate() {
            let slope = match self.history.as_slice() {
                [first] if again => (predicted[index] + first[index]) / 2.0,
                [a, b] => (3.0 * b[index] - a[index]) / 2.0,
                [a, b, c] => (23.0 * c[index] - 16.0 * b[index] + 5.0 * a[index]) / 12.0,
                [a, b, c, d] => {
                    (1.0 / 24.0) * (55.0 * d[index] - 59.0 * c[index] + 37.0 * b[index] - 9.0 * a[index])
                }
                _ => predicted[index],
            };
            *value = transfer.apply(*value, slope);
        }
    }

    fn transfer(&self, from: i64, to: i64) -> Transfer {
        let last = self.alphas_cumprod.len() - 1;
        let known = |step: i64| usize::try_from(step).ok().map(|step| self.alphas_cumprod[step.min(last)]);
        let alpha = known(from).unwrap_or(self.alphas_cumprod[0]);
        let next = known(to).unwrap_or(self.final_alpha);
        let (beta, next_beta) = (1.0 - alpha, 1.0 - next);
        Transfer {
            velocity: (self.prediction == PredictionType::VPrediction).then(|| (alpha.sqrt(), beta.sqrt())),
            sample_weight: (next / alpha).sqrt(),
            difference: next - alpha,
            divisor: alpha * next_beta.sqrt() + (alpha * beta * next).sqrt(),
        }
    }
}

impl Solver for Pndm {
    fn timesteps(&self) -> &[f32] {
        &self.timesteps
    }

    fn step(&mut self, at: usize, predicted: &[f32], _noise: &[f32], sample: &mut [f32]) {
        if at < self.runge_kutta {
            self.runge_kutta_step(at, predicted, sample);
        } else {
            self.multistep(at, predicted, sample);
        }
    }
}

/// Takes one value from one timestep to another (Liu et al. 2022, equation 9; diffusers _get_prev_sample).
struct Transfer {
    /// For v-prediction: the weights of the prediction and the sample in the noise.
    velocity: Option<(f32, f32)>,
    sample_weight: f32,
    difference: f32,
    divisor: f32,
}

impl Transfer {
    fn apply(&self, value: f32, slope: f32) -> f32 {
        let noise = match self.velocity {
            Some((of_slope, of_value)) => of_slope * slope + of_value * value,
            None => slope,
        };
        self.sample_weight * value - self.difference * noise / self.divisor
    }
}

/// The first step is done again with what the second timestep predicts.
fn with_second_twice(visited: &[i64]) -> Vec<i64> {
    let mut all = visited.to_vec();
    if let Some(&second) = visited.get(1) {
        all.insert(1, second);
    }
    all
}

/// Each step looks at its start, twice at its middle, and at its end, which is the next one's start.
fn runge_kutta_timesteps(visited: &[i64], half: i64, train: usize) -> Vec<i64> {
    (0..RUNGE_KUTTA_STEPS)
        .flat_map(|step| {
            let (start, end) = (visited[step], visited[step + 1]);
            let middle = (end + half).min(train as i64 - 1);
            [start, middle, middle, end]
        })
        .collect()
}
