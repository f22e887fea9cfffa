//! One step of AdamW over all buckets, with the gradient's norm held: torch/optim/adam.py, `_single_tensor_adam`;
//! torch/nn/utils/clip_grad.py, `clip_grad_norm_`.

use std::ops::Range;

use ringtune_engine::{
    AlignedFloats, Applied, Bucket, BucketPlan, LookedUp, OptimizerStep, Piece, Shares, common,
};
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
    check_step(step)?;
    parameters.may_move()?;
    let all = everything(plan);
    let mut parts = gradient_squares(parameters, plan, looked_up, buckets, &all)?.into_iter();
    let of_bucket =
        |bucket: &Bucket| parts.by_ref().take(bucket.length.div_ceil(native::part())).sum::<f64>();
    let squares = plan.buckets.iter().map(of_bucket).sum();
    move_held(parameters, plan, (step, squares), buckets, &all, |_, _, _| Ok(()))
}

/// The squares of what is the rank's own, for [`apply_share`], when what was looked up is in the buckets.
///
/// # Errors
/// Buckets that are not the plan's and those rows, other shares, sums that libtorch cannot make.
pub(crate) fn gradient_squares(
    parameters: &Parameters,
    plan: &BucketPlan,
    looked_up: &LookedUp,
    buckets: &mut [AlignedFloats],
    shares: &Shares,
) -> Result<Vec<f64>> {
    let width = parameters.config.n_embd as usize;
    check_buckets(plan, buckets, Some(looked_up.count() * width))?;
    check_shares(plan, shares)?;
    let (buckets, rows) = buckets.split_at_mut(plan.buckets.len());
    for rows in rows {
        add_looked_up(plan, parameters.layout.wte, (looked_up, width), rows, buckets)?;
    }
    let mut parts = Vec::new();
    for (bucket, memory) in buckets.iter().enumerate() {
        let own = &memory[shares.own(bucket)];
        let own = LentToRead::new(own, &[own.len() as i64])?;
        parts.extend(native::squares(&own)?);
    }
    Ok(parts)
}

/// Moves what the rank holds, and puts the parameters where their gradients were; nothing where `squares`, of the whole gradient, are
/// not finite.
///
/// # Errors
/// As [`apply`]'s.
pub(crate) fn apply_share(
    parameters: &mut Parameters,
    plan: &BucketPlan,
    (step, squares): (&OptimizerStep, f64),
    buckets: &mut [AlignedFloats],
    shares: &Shares,
) -> Result<Applied> {
    check_step(step)?;
    let of_plan = buckets.len().min(plan.buckets.len());
    check_buckets(plan, &buckets[..of_plan], None)?;
    check_shares(plan, shares)?;
    parameters.may_move()?;
    move_held(parameters, plan, (step, squares), buckets, shares, |part, memory, count| {
        Lent::new(memory, &[count])?.target().f_copy_(part)?;
        Ok(())
    })
}

/// `keep`: what becomes of a part that has moved, whose gradient's memory it is given.
fn move_held(
    parameters: &mut Parameters,
    plan: &BucketPlan,
    (step, squares): (&OptimizerStep, f64),
    buckets: &mut [AlignedFloats],
    shares: &Shares,
    keep: impl Fn(&Tensor, &mut [f32], i64) -> Result<()>,
) -> Result<Applied> {
    let share = 1.0 / f64::from(step.divide_by);
    let grad_norm = squares.sqrt() * share;
    if !grad_norm.is_finite() {
        return Ok(Applied { grad_norm, skipped: true });
    }
    let clip = step.max_grad_norm.map_or(1.0, |most| (most / (grad_norm + CLIP_EPSILON)).min(1.0));
    for (number, (bucket, memory)) in plan.buckets.iter().zip(buckets).enumerate() {
        for (piece, places) in pieces(bucket, shares.held(number)) {
            let decayed = parameters.layout.parameters[piece.parameter].decayed;
            let numbers = numbers(step, share * clip, decayed);
            let (first, count) = (piece.first + places.start - piece.offset, places.len());
            let memory = &mut memory[places];
            let mut part = parameters.part(piece.parameter, first, count)?;
            let gradient = LentToRead::new(memory, &[count as i64])?;
            native::adamw(&gradient, &numbers, part.moved())?;
            drop(gradient);
            keep(part.parameter(), memory, count as i64)?;
        }
    }
    Ok(Applied { grad_norm, skipped: false })
}

/// Takes the parameters that are not held from the buckets, in fp32 and as they are computed with.
///
/// # Errors
/// A state that is held, buckets or shares of another plan.
pub(crate) fn take_parameters(
    parameters: &mut Parameters,
    plan: &BucketPlan,
    buckets: &[AlignedFloats],
    shares: &Shares,
) -> Result<()> {
    check_buckets(plan, buckets, None)?;
    check_shares(plan, shares)?;
    parameters.may_move()?;
    for (number, (bucket, memory)) in plan.buckets.iter().zip(buckets).enumerate() {
        for (piece, places) in pieces(bucket, shares.missing(number, bucket.length)) {
            let (first, count) = (piece.first + places.start - piece.offset, places.len());
            let mut part = parameters.part(piece.parameter, first, count)?;
            let values = LentToRead::new(&memory[places], &[count as i64])?;
            part.set(&values)?;
        }
    }
    Ok(())
}

/// Forgets the moments that are not held.
///
/// # Errors
/// A state that is held, shares of another plan.
pub(crate) fn keep_moments(parameters: &mut Parameters, plan: &BucketPlan, shares: &Shares) -> Result<()> {
    check_shares(plan, shares)?;
    parameters.may_move()?;
    for (number, bucket) in plan.buckets.iter().enumerate() {
        for (piece, places) in pieces(bucket, shares.missing(number, bucket.length)) {
            let first = piece.first + places.start - piece.offset;
            parameters.part(piece.parameter, first, places.len())?.forget()?;
        }
    }
    Ok(())
}

/// All of every bucket.
fn everything(plan: &BucketPlan) -> Shares {
    Shares::of(plan.buckets.iter().map(|bucket| [0..bucket.length, 0..bucket.length]))
}

/// What of these places of a bucket belongs to each of its pieces.
fn pieces(
    bucket: &Bucket,
    places: impl Iterator<Item = Range<usize>>,
) -> impl Iterator<Item = (Piece, Range<usize>)> {
    let of = move |places: Range<usize>| {
        let within =
            move |piece: &Piece| (*piece, common(&places, &(piece.offset..piece.offset + piece.count)));
        bucket.pieces.iter().map(within).filter(|(_, places)| !places.is_empty())
    };
    places.flat_map(of)
}

fn check_step(step: &OptimizerStep) -> Result<()> {
    step.check().map_err(|error| Error::Argument {
        field: error.field,
        given: error.given,
        allowed: error.allowed.to_owned(),
    })
}

/// `rows`: numbers of the bucket behind the plan's, if there is to be one.
fn check_buckets(plan: &BucketPlan, buckets: &[AlignedFloats], rows: Option<usize>) -> Result<()> {
    let lengths: Vec<usize> = plan.buckets.iter().map(|bucket| bucket.length).chain(rows).collect();
    let given: Vec<usize> = buckets.iter().map(|bucket| bucket.len()).collect();
    if given != lengths {
        return Err(Error::argument("buckets", format!("{given:?} numbers long"), format!("{lengths:?}")));
    }
    Ok(())
}

/// That shares are of this plan, and that sums of squares begin where those of the whole gradient do.
fn check_shares(plan: &BucketPlan, shares: &Shares) -> Result<()> {
    let part = native::part();
    let within = |(number, bucket): (usize, &Bucket)| {
        let own = shares.own(number);
        let whole =
            own.start.is_multiple_of(part) && (own.end.is_multiple_of(part) || own.end == bucket.length);
        (whole || own.is_empty()) && shares.held(number).all(|held| held.end <= bucket.length)
    };
    if shares.count() == plan.buckets.len() && plan.buckets.iter().enumerate().all(within) {
        return Ok(());
    }
    let allowed = format!("parts of {} buckets, of whole {part} numbers", plan.buckets.len());
    Err(Error::argument("shares", format!("{shares:?}"), allowed))
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
