//! One step of AdamW over all buckets, with the gradient's norm held: torch/optim/adam.py, `_single_tensor_adam`;
//! torch/nn/utils/clip_grad.py, `clip_grad_norm_`.

use ringtune_engine::{AlignedFloats, Applied, BucketPlan, OptimizerStep};

use super::native::{self, LentToRead};
use super::parameters::Parameters;
use crate::error::{Error, Result};

/// Added to the norm where it is held, as in clip_grad.py.
const CLIP_EPSILON: f64 = 1e-6;

/// Moves all parameters, or none where the gradient is not finite.
///
/// # Errors
/// Before anything moves: a state that is held, buckets that are not the plan's, a step whose numbers make no sense, a norm that libtorch cannot
/// make.
pub(crate) fn apply(
    parameters: &mut Parameters,
    plan: &BucketPlan,
    step: &OptimizerStep,
    buckets: &[AlignedFloats],
) -> Result<Applied> {
    step.check().map_err(|error| Error::Argument {
        field: error.field,
        given: error.given,
        allowed: error.allowed.to_owned(),
    })?;
    let lengths: Vec<usize> = plan.buckets.iter().map(|bucket| bucket.length).collect();
    let given: Vec<usize> = buckets.iter().map(|bucket| bucket.len()).collect();
    if given != lengths {
        return Err(Error::argument("buckets", format!("{given:?} numbers long"), format!("{lengths:?}")));
    }
    parameters.may_move()?;
    let mut squares = 0.0;
    for memory in buckets {
        let lent = LentToRead::new(memory, &[memory.len() as i64])?;
        squares += native::squares(&lent)?;
    }
    let share = 1.0 / f64::from(step.divide_by);
    let grad_norm = squares.sqrt() * share;
    if !grad_norm.is_finite() {
        return Ok(Applied { grad_norm, skipped: true });
    }
    let clip = step.max_grad_norm.map_or(1.0, |most| (most / (grad_norm + CLIP_EPSILON)).min(1.0));
    for (bucket, memory) in plan.buckets.iter().zip(buckets) {
        for piece in &bucket.pieces {
            let numbers = numbers(step, share * clip, parameters.layout.parameters[piece.parameter].decayed);
            let gradient =
                LentToRead::new(&memory[piece.offset..piece.offset + piece.count], &[piece.count as i64])?;
            let mut part = parameters.part(piece.parameter, piece.first, piece.count)?;
            native::adamw(&gradient, &numbers, part.moved())?;
        }
    }
    Ok(Applied { grad_norm, skipped: false })
}

/// The numbers of csrc/language_kernels.h's `AdamW`, in its order: worked out in 64 bits.
fn numbers(step: &OptimizerStep, factor: f64, decayed: bool) -> [f64; 8] {
    let OptimizerStep { number, learning_rate, beta1, beta2, epsilon, weight_decay, .. } = *step;
    let correction = |beta: f64| 1.0 - libm::pow(beta, number as f64);
    let keep = if decayed { 1.0 - learning_rate * weight_decay } else { 1.0 };
    let (scale, step_size) = (libm::sqrt(correction(beta2)), -learning_rate / correction(beta1));
    [factor, keep, 1.0 - beta1, beta2, 1.0 - beta2, scale, step_size, epsilon]
}
