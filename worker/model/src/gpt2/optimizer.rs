//! One step of AdamW over all buckets, with the gradient's norm held: torch/optim/adam.py, `_single_tensor_adam`;
//! torch/nn/utils/clip_grad.py, `clip_grad_norm_`.

use ringtune_engine::{AlignedFloats, Applied, BucketPlan, LookedUp, OptimizerStep};
use tch::Tensor;

use super::native::{self, Lent, LentToRead};
use super::parameters::Parameters;
use crate::error::{Error, Result};

/// Added to the norm where it is held, as in clip_grad.py.
const CLIP_EPSILON: f64 = 1e-6;

/// Moves all parameters, or none where the gradient is not finite. `looked_up`: ids of the table; the last of `buckets` has their rows.
///
/// # Errors
/// Before anything moves: a state that is held, buckets that are not the plan's and those rows, a step whose numbers make no sense, a
/// norm that libtorch cannot make.
pub(crate) fn apply(
    parameters: &mut Parameters,
    plan: &BucketPlan,
    step: &OptimizerStep,
    looked_up: &LookedUp,
    buckets: &mut [AlignedFloats],
) -> Result<Applied> {
    step.check().map_err(|error| Error::Argument {
        field: error.field,
        given: error.given,
        allowed: error.allowed.to_owned(),
    })?;
    let width = parameters.config.n_embd as usize;
    let lengths = plan.buckets.iter().map(|bucket| bucket.length);
    let lengths: Vec<usize> = lengths.chain([looked_up.count() * width]).collect();
    let given: Vec<usize> = buckets.iter().map(|bucket| bucket.len()).collect();
    if given != lengths {
        return Err(Error::argument("buckets", format!("{given:?} numbers long"), format!("{lengths:?}")));
    }
    parameters.may_move()?;
    let (buckets, rows) = buckets.split_at_mut(plan.buckets.len());
    for rows in rows {
        add_looked_up(plan, parameters.layout.wte, (looked_up, width), rows, buckets)?;
    }
    let mut squares = 0.0;
    for memory in &*buckets {
        let lent = LentToRead::new(memory, &[memory.len() as i64])?;
        squares += native::squares(&lent)?;
    }
    let share = 1.0 / f64::from(step.divide_by);
    let grad_norm = squares.sqrt() * share;
    if !grad_norm.is_finite() {
        return Ok(Applied { grad_norm, skipped: true });
    }
    let clip = step.max_grad_norm.map_or(1.0, |most| (most / (grad_norm + CLIP_EPSILON)).min(1.0));
    for (bucket, memory) in plan.buckets.iter().zip(&*buckets) {
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

/// Adds the rows of what was looked up to the head's part of the table's gradient, which is then the whole.
fn add_looked_up(
    plan: &BucketPlan,
    table: usize,
    (looked_up, width): (&LookedUp, usize),
    rows: &AlignedFloats,
    buckets: &mut [AlignedFloats],
) -> Result<()> {
    for (bucket, piece) in plan.pieces_of(table) {
        let (first, count) = (piece.first / width, piece.count / width);
        let places = looked_up.places_within(first as i64..(first + count) as i64);
        if places.is_empty() {
            continue;
        }
        let own: Vec<i64> = looked_up.ids()[places.clone()].iter().map(|id| id - first as i64).collect();
        let rows = &rows[places.start * width..places.end * width];
        let rows = LentToRead::new(rows, &[places.len() as i64, width as i64])?;
        let part = &mut buckets[bucket][piece.offset..piece.offset + piece.count];
        let mut part = Lent::new(part, &[count as i64, width as i64])?;
        native::put_rows(&rows, &Tensor::f_from_slice(&own)?, true, part.target())?;
    }
    Ok(())
}

/// The numbers of csrc/language_kernels.h's `AdamW`, in its order: worked out in 64 bits.
fn numbers(step: &OptimizerStep, factor: f64, decayed: bool) -> [f64; 8] {
    let OptimizerStep { number, learning_rate, beta1, beta2, epsilon, weight_decay, .. } = *step;
    let correction = |beta: f64| 1.0 - libm::pow(beta, number as f64);
    let keep = if decayed { 1.0 - learning_rate * weight_decay } else { 1.0 };
    let (scale, step_size) = (libm::sqrt(correction(beta2)), -learning_rate / correction(beta1));
    [factor, keep, 1.0 - beta1, beta2, 1.0 - beta2, scale, step_size, epsilon]
}
