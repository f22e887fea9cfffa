//! A linear multistep method on the noise level: the last four directions, each weighted with the integral of its
//! Lagrange polynomial over the step (Adams-Bashforth with uneven steps; k-diffusion).

use super::Solver;
use super::sigmas::SigmaPath;
use crate::config::SamplerConfig;
use crate::error::Result;

/// Number of directions used.
const ORDER: usize = 4;

/// Source: diffusers LMSDiscreteScheduler.
#[derive(Debug)]
pub(super) struct Lms {
    path: SigmaPath,
    /// The last directions, at most [`ORDER`], the newest first.
    derivatives: Vec<Vec<f32>>,
}

impl Lms {
    pub(super) fn new(config: &SamplerConfig, steps: usize) -> Result<Self> {
        Ok(Lms { path: SigmaPath::new(config, steps)?, derivatives: Vec::with_capacity(ORDER) })
    }
}

impl Solver for Lms {
    fn timesteps(&self) -> &[f32] {
        &self.path.timesteps
    }

    fn initial_scale(&self) -> f32 {
        self.path.initial_scale()
    }

    fn input_divisor(&self, at: usize) -> f32 {
        self.path.input_divisor(at)
    }

    fn step(&mut self, at: usize, predicted: &[f32], _noise: &[f32], sample: &mut [f32]) {
        let newest = sample
            .iter()
            .zip(predicted)
            .map(|(&value, &output)| self.path.derivative(at, value, output))
            .collect();
        self.derivatives.truncate(ORDER - 1);
        self.derivatives.insert(0, newest);
        let levels: Vec<f64> =
            (0..self.derivatives.len()).map(|back| f64::from(self.path.sigmas[at - back])).collect();
        let to = f64::from(self.path.sigmas[at + 1]);
        let weights: Vec<f32> = (0..levels.len()).map(|which| weight(&levels, which, to) as f32).collect();
        for (index, value) in sample.iter_mut().enumerate() {
            let direction = weights.iter().zip(&self.derivatives).map(|(weight, all)| weight * all[index]);
            *value += direction.sum::<f32>();
        }
    }
}

/// The integral, from `levels[0]` to `to`, of the polynomial that is 1 at `levels[which]` and 0 at the others.
///
/// Its degree is at most 3, so that Gauss and Legendre's rule of two points is exact, where diffusers calls
/// scipy.integrate.quad.
fn weight(levels: &[f64], which: usize, to: f64) -> f64 {
    let polynomial = |place: f64| -> f64 {
        levels
            .iter()
            .enumerate()
            .filter(|&(index, _)| index != which)
            .map(|(_, level)| (place - level) / (levels[which] - level))
            .product()
    };
    let (middle, half) = ((levels[0] + to) / 2.0, (to - levels[0]) / 2.0);
    let reach = half / 3f64.sqrt();
    half * (polynomial(middle - reach) + polynomial(middle + reach))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_even_steps_the_weights_are_those_of_adams_and_bashforth() {
        let levels = [4.0, 5.0, 6.0, 7.0];
        for (which, expected) in [55.0, -59.0, 37.0, -9.0].into_iter().enumerate() {
            assert!((weight(&levels, which, 3.0) - -expected / 24.0).abs() < 1e-12, "{which}");
        }
        assert_eq!(weight(&levels[..1], 0, 3.0), -1.0);
    }
}
