//! AdamW as torch.optim.AdamW computes it on the CPU (one tensor at a time, not fused), in fp32.
//! Source: Loshchilov & Hutter 2019; torch/optim/adam.py, `_single_tensor_adam`.
//!
//! A step's scalars are those of [`OptimizerStep::scalars`], as those of parameters that the engine holds. The elements of the
//! latter are moved by `worker/model/csrc/language_body.h`, which rounds in other places: for one source jobs would have other bits.

use crate::engine::{AdamWScalars, OptimizerStep};

/// Settings of the optimizer. The default is that of torch and of diffusers' textual_inversion.py.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWOptions {
    /// How much of the gradients' running mean a step keeps.
    pub beta1: f64,
    /// How much of the squared gradients' running mean a step keeps.
    pub beta2: f64,
    /// Added to the denominator.
    pub epsilon: f64,
    /// Share of the weights, times the learning rate, that a step takes away.
    pub weight_decay: f64,
}

impl Default for AdamWOptions {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 1e-2 }
    }
}

/// The optimizer's state for one flat vector of weights.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    options: AdamWOptions,
    /// Steps taken.
    count: u64,
    mean: Vec<f32>,
    square: Vec<f32>,
}

impl AdamW {
    /// For `length` weights, before any step.
    pub fn new(options: AdamWOptions, length: usize) -> Self {
        Self { options, count: 0, mean: vec![0.0; length], square: vec![0.0; length] }
    }

    /// Steps taken: skipped ones do not count.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The gradients' running mean and that of their squares.
    pub fn moments(&self) -> (&[f32], &[f32]) {
        (&self.mean, &self.square)
    }

    /// With the same options, as it was after `count` steps that left these moments, each of the weights' length.
    pub fn resumed(self, count: u64, mean: Vec<f32>, square: Vec<f32>) -> Self {
        Self { options: self.options, count, mean, square }
    }

    /// Moves `weights` against `gradient`, both of the length this was made for.
    ///
    /// Scalars are worked out in 64 bits and rounded once, elements in 32; products that torch's kernels add in one
    /// rounding are added in one here (`mul_add` is exact everywhere).
    pub fn step(&mut self, weights: &mut [f32], gradient: &[f32], learning_rate: f64) {
        let AdamWOptions { beta1, beta2, epsilon, weight_decay } = self.options;
        self.count += 1;
        let step = OptimizerStep {
            number: self.count,
            learning_rate,
            beta1,
            beta2,
            epsilon,
            weight_decay,
            max_grad_norm: None,
            divide_by: 1,
            other_rates: [0.0; 2],
            average_decay: None,
        };
        let AdamWScalars { keep, new_mean, keep_square, new_square, scale, step_size, epsilon } =
            step.scalars(true, 0);
        let [keep, new_mean, keep_square, new_square] =
            [keep, new_mean, keep_square, new_square].map(|number| number as f32);
        let [scale, step_size, epsilon] = [scale, step_size, epsilon].map(|number| number as f32);
        let state = self.mean.iter_mut().zip(&mut self.square);
        for ((weight, gradient), (mean, square)) in weights.iter_mut().zip(gradient).zip(state) {
            *weight *= keep;
            *mean = new_mean.mul_add(gradient - *mean, *mean);
            *square = (new_square * gradient).mul_add(*gradient, *square * keep_square);
            let denominator = square.sqrt() / scale + epsilon;
            *weight += step_size * *mean / denominator;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_is_the_learning_rate_against_the_sign() {
        let mut weights = [1.0f32, -2.0, 0.5];
        let mut optimizer = AdamW::new(AdamWOptions { weight_decay: 0.0, ..AdamWOptions::default() }, 3);
        optimizer.step(&mut weights, &[1e-3, -100.0, 0.0], 0.1);
        for (weight, expected) in weights.iter().zip([0.9, -1.9, 0.5]) {
            assert!((weight - expected).abs() < 1e-5, "{weight} is not {expected}");
        }
        assert_eq!(optimizer.count(), 1);
    }

    #[test]
    fn decay_shrinks_weights_without_a_gradient() {
        let mut weights = [2.0f32];
        let mut optimizer = AdamW::new(AdamWOptions::default(), 1);
        optimizer.step(&mut weights, &[0.0], 0.5);
        assert_eq!(weights, [2.0 * (1.0 - 0.5 * 0.01) as f32]);
    }

    #[test]
    fn a_learning_rate_of_zero_moves_only_the_state() {
        let mut weights = [0.25f32, -4.0];
        let mut optimizer = AdamW::new(AdamWOptions::default(), 2);
        let fresh = optimizer.clone();
        optimizer.step(&mut weights, &[1.0, 2.0], 0.0);
        assert_eq!(weights, [0.25, -4.0]);
        assert_ne!(optimizer, fresh);
    }
}
