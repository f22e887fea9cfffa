//! Euler's method on the noise level, and its ancestral variant, which goes further down than the next level and adds
//! noise up to it.

use ringtune_engine::SamplerKind;

use super::Solver;
use super::sigmas::SigmaPath;
use crate::config::SamplerConfig;
use crate::error::Result;

/// Source: diffusers EulerDiscreteScheduler and EulerAncestralDiscreteScheduler.
#[derive(Debug)]
pub(super) struct Euler {
    path: SigmaPath,
    ancestral: bool,
}

impl Euler {
    pub(super) fn new(config: &SamplerConfig, steps: usize) -> Result<Self> {
        let ancestral = config.kind == SamplerKind::EulerAncestral;
        Ok(Euler { path: SigmaPath::new(config, steps)?, ancestral })
    }
}

impl Solver for Euler {
    fn timesteps(&self) -> &[f32] {
        &self.path.timesteps
    }

    fn initial_scale(&self) -> f32 {
        self.path.initial_scale()
    }

    fn input_divisor(&self, at: usize) -> f32 {
        self.path.input_divisor(at)
    }

    fn step(&mut self, at: usize, predicted: &[f32], noise: &[f32], sample: &mut [f32]) {
        let (from, to) = (self.path.sigmas[at], self.path.sigmas[at + 1]);
        let (up, down) = if self.ancestral { ancestral_levels(from, to) } else { (0.0, to) };
        let difference = down - from;
        for (value, &output) in sample.iter_mut().zip(predicted) {
            *value += self.path.derivative(at, *value, output) * difference;
        }
        for (value, noise) in sample.iter_mut().zip(noise) {
            *value += noise * up;
        }
    }
}

/// The level to go down to, and the noise to add then, so that the variance is that of `to`.
fn ancestral_levels(from: f32, to: f32) -> (f32, f32) {
    let (from_squared, to_squared) = (from * from, to * to);
    let up = (to_squared * (from_squared - to_squared) / from_squared).sqrt();
    (up, (to_squared - up * up).max(0.0).sqrt())
}
