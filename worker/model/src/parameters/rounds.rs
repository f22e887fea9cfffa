//! Rounds: steps that a rank takes by itself, and the step that all take together by how far each came.
//!
//! Sources: Douillard et al. 2023, DiLoCo, algorithm 1; torch/optim/sgd.py, `_single_tensor_sgd` with nesterov.

use ringtune_engine::{AlignedFloats, Applied, OuterStep, Shows};
use tch::Tensor;

use super::native::{Lent, LentToRead};
use super::optimizer::{check_buckets, wrong_step};
use super::{Parameters, Part};
use crate::error::{Error, Result};

/// What a parameter has besides, where it is trained in rounds.
#[derive(Debug)]
pub(super) struct RoundValues {
    /// Of the steps that all ranks take together.
    pub(super) momentum: Tensor,
    /// The parameter when the round began.
    pub(super) before: Tensor,
}

impl Parameters {
    /// Begins a round: keeps the parameters, and makes zeros of the moments.
    ///
    /// # Errors
    /// Before anything changes: parameters that were not opened for rounds, a state that is held.
    pub fn begin_round(&mut self) -> Result<()> {
        self.show(Shows::Parameters)?;
        self.refresh()?;
        self.end_round(&mut [])?;
        self.holds.none()?;
        if self.values.iter().any(|values| values.round.is_none()) {
            return Err(Error::argument("rounds", false, "true, when the parameters are opened"));
        }
        for number in 0..self.values.len() {
            let elements = self.info.list[number].elements();
            self.part(number, 0, elements)?.forget()?;
            let values = &mut self.values[number];
            if let Some(round) = &mut values.round {
                round.before.f_copy_(&values.master)?;
            }
        }
        self.in_round = true;
        Ok(())
    }

    /// Ends a round: puts how far the parameters came into `buckets`, unless these are none, and takes them back.
    ///
    /// # Errors
    /// Before anything changes: other buckets than the plan's and an empty one, buckets for a round that did not begin, a state that is
    /// held.
    pub fn end_round(&mut self, buckets: &mut [AlignedFloats]) -> Result<()> {
        // 1. What is asked for.
        if !buckets.is_empty() {
            check_buckets(&self.info.plan, buckets, Some(0))?;
        }
        if !self.in_round {
            let none = buckets.is_empty();
            return if none { Ok(()) } else { Err(Error::argument("round", "none", "one that has begun")) };
        }
        self.holds.none()?;
        // 2. How far each came.
        for (bucket, memory) in self.info.plan.buckets.iter().zip(buckets) {
            for piece in &bucket.pieces {
                let values = &self.values[piece.parameter];
                let Some(round) = &values.round else { continue };
                let part = |tensor: &Tensor| {
                    tensor.f_view([-1])?.f_narrow(0, piece.first as i64, piece.count as i64)
                };
                let came = part(&round.before)?.f_sub(&part(&values.master)?)?;
                let place = &mut memory[piece.offset..piece.offset + piece.count];
                Lent::new(place, &[piece.count as i64])?.target().f_copy_(&came)?;
            }
        }
        // 3. Back to where it began.
        for values in &mut self.values {
            let Some(round) = &values.round else { continue };
            values.master.f_copy_(&round.before)?;
            values.stale = values.low.is_some();
        }
        self.watch.changed();
        self.in_round = false;
        self.refresh()
    }

    /// Moves the parameters by the movements of all ranks' rounds, which `buckets` have added up.
    ///
    /// # Errors
    /// Before anything moves: as [`Parameters::apply`]'s; a round that has not ended.
    pub fn apply_round(&mut self, step: &OuterStep, buckets: &mut [AlignedFloats]) -> Result<Applied> {
        step.check().map_err(wrong_step)?;
        if self.in_round || self.values.iter().any(|values| values.round.is_none()) {
            return Err(Error::argument("round", self.in_round, "one that has ended"));
        }
        self.show(Shows::Parameters)?;
        self.refresh()?;
        self.holds.none()?;
        let share = 1.0 / f64::from(step.divide_by);
        let grad_norm = self.squared_norm(&Default::default(), buckets)?.sqrt() * share;
        if !grad_norm.is_finite() {
            return Ok(Applied { grad_norm, skipped: true });
        }
        for (number, memory) in buckets.iter().take(self.info.plan.buckets.len()).enumerate() {
            for piece in self.info.plan.buckets[number].pieces.clone() {
                let came = &memory[piece.offset..piece.offset + piece.count];
                let came = LentToRead::new(came, &[piece.count as i64])?;
                let mut part = self.part(piece.parameter, piece.first, piece.count)?;
                part.move_together(&came.f_mul_scalar(share)?, step)?;
                part.move_average(step.average_decay)?;
            }
        }
        Ok(Applied { grad_norm, skipped: false })
    }
}

impl Part {
    /// By the mean of all ranks' movements.
    fn move_together(&mut self, came: &Tensor, step: &OuterStep) -> Result<()> {
        let OuterStep { learning_rate, momentum: kept, .. } = *step;
        let Part { parameter, momentum: Some(momentum), low, .. } = self else { return Ok(()) };
        let _ = momentum.f_mul_scalar_(kept)?.f_add_(came)?;
        let moved = momentum.f_mul_scalar(kept)?.f_add_(came)?.f_mul_scalar_(learning_rate)?;
        let _ = parameter.f_sub_(&moved)?;
        if let Some(low) = low {
            low.f_copy_(parameter)?;
        }
        Ok(())
    }
}
