//! One step of AdamW over all buckets, with the gradient's norm held: torch/optim/adam.py, `_single_tensor_adam`;
//! torch/nn/utils/clip_grad.py, `clip_grad_norm_`.

use std::ops::Range;

use ringtune_engine::{
    AdamWScalars, AlignedFloats, Applied, Bucket, BucketPlan, EmbeddingRows, OptimizerStep, Parameter, Piece,
    Shares, Shows, WrongStep, common,
};
use tch::Tensor;

use super::Parameters;
use super::native::{self, Lent, LentToRead};
use crate::error::{Error, Result};

/// Added to the norm where it is held, as in clip_grad.py.
const CLIP_EPSILON: f64 = 1e-6;

impl Parameters {
    /// One step of the optimizer with what the buckets hold, the last of which has the rows of `looked_up`, ids of the token table:
    /// moves all parameters, or none where the gradient is not finite.
    ///
    /// # Errors
    /// Before anything moves: a state that is held, buckets that are not the plan's and those rows, ids beyond the vocabulary, a step
    /// whose numbers make no sense, a norm that libtorch cannot make.
    pub fn apply(
        &mut self,
        step: &OptimizerStep,
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied> {
        self.check_looked_up(looked_up)?;
        // What was written to is rounded before a step rounds what it moves.
        self.show(Shows::Parameters)?;
        self.refresh()?;
        check_step(step)?;
        self.holds.none()?;
        let squared_norm = self.squared_norm(looked_up, buckets)?;
        let all = self.info.plan.everything();
        self.move_held(step, squared_norm, buckets, &all, |_, _, _| Ok(()))
    }

    /// The sum of squares of all that the buckets hold, when what was looked up is in them.
    ///
    /// # Errors
    /// As [`Parameters::squared_norm_parts`]'s.
    pub(super) fn squared_norm(
        &self,
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
    ) -> Result<f64> {
        let all = self.info.plan.everything();
        let mut parts = self.squared_norm_parts(looked_up, buckets, &all)?.into_iter();
        let of_bucket =
            |bucket: &Bucket| parts.by_ref().take(bucket.length.div_ceil(native::part())).sum::<f64>();
        Ok(self.info.plan.buckets.iter().map(of_bucket).sum())
    }

    /// The sums of squares of what is the rank's own, for [`Parameters::apply_share`], when what was looked up is in the buckets.
    ///
    /// # Errors
    /// Buckets that are not the plan's and those rows, other shares, ids beyond the vocabulary, sums that libtorch cannot make.
    pub fn squared_norm_parts(
        &self,
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Vec<f64>> {
        self.check_looked_up(looked_up)?;
        let plan = &self.info.plan;
        check_buckets(plan, buckets, Some(self.info.looked_up_length(looked_up)))?;
        check_shares(plan, shares)?;
        let (buckets, rows) = buckets.split_at_mut(plan.buckets.len());
        for rows in rows {
            self.add_looked_up(looked_up, rows, buckets)?;
        }
        let mut parts = Vec::new();
        for (bucket, memory) in buckets.iter().enumerate() {
            let own = &memory[shares.own(bucket)];
            let own = LentToRead::new(own, &[own.len() as i64])?;
            parts.extend(native::squares(&own)?);
        }
        Ok(parts)
    }

    /// One step of the optimizer with what this rank holds of it: moves that, and puts the parameters where their gradients were; nothing
    /// where `squared_norm`, of the whole gradient, is not finite.
    ///
    /// # Errors
    /// As [`Parameters::apply`]'s: then nothing has moved.
    pub fn apply_share(
        &mut self,
        step: &OptimizerStep,
        squared_norm: f64,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Applied> {
        self.show(Shows::Parameters)?;
        self.refresh()?;
        check_step(step)?;
        let of_plan = buckets.len().min(self.info.plan.buckets.len());
        check_buckets(&self.info.plan, &buckets[..of_plan], None)?;
        check_shares(&self.info.plan, shares)?;
        self.holds.none()?;
        self.move_held(step, squared_norm, buckets, shares, |part, memory, count| {
            Lent::new(memory, &[count])?.target().f_copy_(part)?;
            Ok(())
        })
    }

    /// `keep`: what becomes of a part that has moved, whose gradient's memory it is given.
    fn move_held(
        &mut self,
        step: &OptimizerStep,
        squared_norm: f64,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
        keep: impl Fn(&Tensor, &mut [f32], i64) -> Result<()>,
    ) -> Result<Applied> {
        let share = 1.0 / f64::from(step.divide_by);
        let grad_norm = squared_norm.sqrt() * share;
        if !grad_norm.is_finite() {
            return Ok(Applied { grad_norm, skipped: true });
        }
        let clip = step.max_grad_norm.map_or(1.0, |most| (most / (grad_norm + CLIP_EPSILON)).min(1.0));
        let of =
            |parameter: &Parameter| numbers(share * clip, step.scalars(parameter.decayed, parameter.rate));
        for number in 0..self.info.plan.buckets.len().min(buckets.len()) {
            let memory = &mut buckets[number];
            let held: Vec<_> = pieces(&self.info.plan.buckets[number], shares.held(number)).collect();
            for (piece, places) in held {
                let numbers = of(&self.info.list[piece.parameter]);
                let (first, count) = (piece.first + places.start - piece.offset, places.len());
                let memory = &mut memory[places];
                let mut part = self.part(piece.parameter, first, count)?;
                let gradient = LentToRead::new(memory, &[count as i64])?;
                native::adamw(&gradient, &numbers, part.moved())?;
                drop(gradient);
                part.follow(step.average_decay)?;
                keep(part.parameter(), memory, count as i64)?;
            }
        }
        Ok(Applied { grad_norm, skipped: false })
    }

    /// Takes the parameters that this rank does not hold from the buckets, in fp32 and as they are computed with, and moves their
    /// averages.
    ///
    /// # Errors
    /// A state that is held, buckets or shares of another plan.
    pub fn take_parameters(
        &mut self,
        buckets: &[AlignedFloats],
        shares: &Shares,
        average_decay: Option<f64>,
    ) -> Result<()> {
        self.refresh()?;
        check_buckets(&self.info.plan, buckets, None)?;
        check_shares(&self.info.plan, shares)?;
        self.holds.none()?;
        for (number, memory) in buckets.iter().enumerate() {
            for (piece, places) in self.missing(number, shares) {
                let (first, count) = (piece.first + places.start - piece.offset, places.len());
                let values = LentToRead::new(&memory[places], &[count as i64])?;
                let mut part = self.part(piece.parameter, first, count)?;
                part.set(&values)?;
                part.move_average(average_decay)?;
            }
        }
        Ok(())
    }

    /// Forgets the moments that this rank does not hold.
    ///
    /// # Errors
    /// A state that is held, shares of another plan.
    pub fn keep_moments(&mut self, shares: &Shares) -> Result<()> {
        check_shares(&self.info.plan, shares)?;
        self.holds.none()?;
        for number in 0..self.info.plan.buckets.len() {
            for (piece, places) in self.missing(number, shares) {
                let first = piece.first + places.start - piece.offset;
                self.part(piece.parameter, first, places.len())?.forget()?;
            }
        }
        Ok(())
    }

    /// What of a bucket is not held.
    fn missing(&self, number: usize, shares: &Shares) -> Vec<(Piece, Range<usize>)> {
        let bucket = &self.info.plan.buckets[number];
        pieces(bucket, shares.missing(number, bucket.length)).collect()
    }

    /// Adds the rows of what was looked up to the head's part of the table's gradient, which is then the whole.
    fn add_looked_up(
        &self,
        looked_up: &EmbeddingRows,
        rows: &AlignedFloats,
        buckets: &mut [AlignedFloats],
    ) -> Result<()> {
        let (Some(table), width) = (self.table, self.info.width) else { return Ok(()) };
        for (bucket, piece) in self.info.plan.pieces_of(table) {
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
    step.check().map_err(wrong_step)
}

pub(super) fn wrong_step(error: WrongStep) -> Error {
    Error::Argument { field: error.field, given: error.given, allowed: error.allowed.to_owned() }
}

/// `rows`: numbers of the bucket behind the plan's, if there is to be one.
pub(super) fn check_buckets(plan: &BucketPlan, buckets: &[AlignedFloats], rows: Option<usize>) -> Result<()> {
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

/// The numbers of csrc/language_kernels.h's `AdamW`, in its order; `factor`: what gradients are multiplied by before.
fn numbers(factor: f64, scalars: AdamWScalars) -> [f64; 8] {
    let AdamWScalars { keep, new_mean, keep_square, new_square, scale, step_size, epsilon } = scalars;
    [factor, keep, new_mean, keep_square, new_square, scale, step_size, epsilon]
}
