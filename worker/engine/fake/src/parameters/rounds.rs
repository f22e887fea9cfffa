//! Rounds of the fake's parameters.

use std::sync::Arc;

use ringtune_engine::{AlignedFloats, Applied, EngineError, OuterStep};

use super::{FakeParameters, MOMENTUM, part_of, state_name, wrong};

impl FakeParameters {
    pub(crate) fn begin_round(&mut self) -> Result<(), EngineError> {
        self.end_round(&mut [])?;
        self.may_change()?;
        if !self.has_rounds() {
            return Err(wrong("rounds is false, allowed is true, when the parameters are opened".to_owned()));
        }
        for (name, values) in &mut self.state {
            if let Some(values) = Arc::get_mut(values).filter(|_| name.starts_with("adamw.")) {
                values.fill(0.0);
            }
        }
        let copied = self.state.iter().filter(|(name, _)| name.starts_with("model."));
        self.before = Some(copied.map(|(name, values)| (name.clone(), Arc::new(values.to_vec()))).collect());
        Ok(())
    }

    pub(crate) fn end_round(&mut self, buckets: &mut [AlignedFloats]) -> Result<(), EngineError> {
        if !buckets.is_empty() {
            self.check_buckets(buckets, Some(0))?;
        }
        self.may_change()?;
        let Some(before) = self.before.take() else {
            let given_up = buckets.is_empty();
            return if given_up { Ok(()) } else { Err(wrong("no round has begun".to_owned())) };
        };
        for (bucket, memory) in self.plan.buckets.iter().zip(buckets) {
            for piece in &bucket.pieces {
                let name = state_name("model", &self.list[piece.parameter]);
                let moved = before[&name].iter().zip(self.state[&name].iter()).skip(piece.first);
                for (place, (before, after)) in memory[piece.offset..][..piece.count].iter_mut().zip(moved) {
                    *place = before - after;
                }
            }
        }
        self.state.extend(before);
        Ok(())
    }

    pub(crate) fn apply_round(
        &mut self,
        step: &OuterStep,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied, EngineError> {
        step.check().map_err(|error| EngineError::OfJob(error.into()))?;
        self.check_buckets(buckets, Some(0))?;
        self.may_change()?;
        if self.before.is_some() || !self.has_rounds() {
            return Err(wrong("no round has ended".to_owned()));
        }
        let share = 1.0 / f64::from(step.divide_by);
        let squares = buckets.iter().flat_map(|memory| memory.iter()).map(|came| f64::from(*came).powi(2));
        let grad_norm = squares.sum::<f64>().sqrt() * share;
        if !grad_norm.is_finite() {
            return Ok(Applied { grad_norm, skipped: true });
        }
        for (bucket, memory) in self.plan.buckets.iter().zip(buckets) {
            for piece in &bucket.pieces {
                let parameter = &self.list[piece.parameter];
                for (place, came) in (piece.first..).zip(&memory[piece.offset..piece.offset + piece.count]) {
                    let came = f64::from(*came) * share;
                    let places = place..place + 1;
                    let mut one = |kind: &str, change: &dyn Fn(f64) -> f64| {
                        let values = part_of(&mut self.state, kind, parameter, &places);
                        let value = values.and_then(|values| values.first_mut())?;
                        *value = change(f64::from(*value)) as f32;
                        Some(f64::from(*value))
                    };
                    let momentum = one(MOMENTUM, &|old| step.momentum * old + came).unwrap_or(0.0);
                    let along = step.learning_rate * (came + step.momentum * momentum);
                    let moved = one("model", &|old| old - along).unwrap_or(0.0);
                    if let Some(kept) = step.average_decay {
                        one("average", &|old| old - (1.0 - kept) * (old - moved));
                    }
                }
            }
        }
        Ok(Applied { grad_norm, skipped: false })
    }

    pub(super) fn has_rounds(&self) -> bool {
        self.state.keys().any(|name| name.starts_with(MOMENTUM))
    }
}
