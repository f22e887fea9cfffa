//! What training changes: the learned rows and the optimizer's state.

use std::sync::Arc;

use super::{AdamW, AdamWOptions, Error, ReducedStep, SavedState, Selection, SkippedInARow, clip::clipped};

// The names that a checkpoint has for the state's parts.
const ROWS: &str = "train.rows";
const MEAN: &str = "train.adamw_mean";
const SQUARE: &str = "train.adamw_square";
const COUNT: &str = "train.adamw_count";
const SKIPPED: &str = "train.skipped_in_a_row";

/// The same on every rank after every step.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainState {
    rows: Arc<Vec<f32>>,
    optimizer: AdamW,
    max_grad_norm: Option<f64>,
    skipped_in_a_row: SkippedInARow,
    selection: Selection,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// The rows moved.
    Applied,
    /// The loss or the gradient was not finite: the step and its learning rate are used up, nothing moved, and the
    /// optimizer does not count it.
    Skipped,
}

impl TrainState {
    /// `rows`: [num_vectors, text_width] flat, each the initializer's row of the token table.
    pub fn new(rows: Vec<f32>, options: AdamWOptions) -> Self {
        let optimizer = AdamW::new(options, rows.len());
        Self {
            rows: Arc::new(rows),
            optimizer,
            max_grad_norm: None,
            skipped_in_a_row: SkippedInARow::default(),
            selection: Selection::default(),
        }
    }

    /// The same, with gradients clipped to this norm before the optimizer sees them. None: as they are.
    pub fn with_max_grad_norm(self, max_grad_norm: Option<f64>) -> Self {
        Self { max_grad_norm, ..self }
    }

    /// The same, over after so many validations without a lower loss; 0: never.
    pub fn with_patience(self, patience: u64) -> Self {
        Self { selection: Selection::new(patience), ..self }
    }

    /// Takes in the loss on the held-out samples with the rows as they are after `step`; whether it is the lowest.
    pub fn judge(&mut self, step: u64, loss: f32) -> bool {
        self.selection.take_in(step, loss, &self.rows)
    }

    /// What the validations so far say.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The learned rows, [num_vectors, text_width] flat.
    pub fn rows(&self) -> &Arc<Vec<f32>> {
        &self.rows
    }

    /// All that the next steps depend on, for a checkpoint.
    pub fn save(&self, saved: &mut SavedState) {
        let (mean, square) = self.optimizer.moments();
        for (name, vector) in [(ROWS, self.rows.as_slice()), (MEAN, mean), (SQUARE, square)] {
            saved.put_tensor(name, vector.to_vec());
        }
        saved.put_number(COUNT, self.optimizer.count());
        self.skipped_in_a_row.save(SKIPPED, saved);
        self.selection.save(saved);
    }

    /// With the same options, in the state that was saved.
    ///
    /// # Errors
    /// Something is missing, of another length than the rows, or impossible.
    pub fn restored(self, saved: &mut SavedState) -> Result<Self, Error> {
        let length = self.rows.len();
        let rows = saved.take_tensor(ROWS, length)?;
        let (mean, square) = (saved.take_tensor(MEAN, length)?, saved.take_tensor(SQUARE, length)?);
        let count = saved.take_number(COUNT)?;
        let skipped_in_a_row = SkippedInARow::restored(SKIPPED, saved)?;
        Ok(Self {
            rows: Arc::new(rows),
            optimizer: self.optimizer.resumed(count, mean, square),
            max_grad_norm: self.max_grad_norm,
            skipped_in_a_row,
            selection: self.selection.restored(saved, length)?,
        })
    }

    /// Takes step `step` with the learning rate that its schedule gives it.
    ///
    /// # Errors
    /// The gradient has another length than the rows, or this is the tenth step in a row that is not finite.
    pub fn apply(
        &mut self,
        step: u64,
        reduced: &ReducedStep,
        learning_rate: f64,
    ) -> Result<StepOutcome, Error> {
        if reduced.gradient.len() != self.rows.len() {
            return Err(Error::GradientLength { found: reduced.gradient.len(), expected: self.rows.len() });
        }
        self.skipped_in_a_row.take_in(step, !reduced.finite, reduced.loss)?;
        if reduced.finite {
            let rows: &mut Vec<f32> = Arc::make_mut(&mut self.rows);
            match self.max_grad_norm {
                None => self.optimizer.step(rows, &reduced.gradient, learning_rate),
                Some(most) => self.optimizer.step(rows, &clipped(&reduced.gradient, most), learning_rate),
            }
            return Ok(StepOutcome::Applied);
        }
        Ok(StepOutcome::Skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced(gradient: f32) -> ReducedStep {
        ReducedStep {
            loss: 1.0,
            gradient: vec![gradient; 2],
            finite: gradient.is_finite(),
            compute_seconds: 0.0,
        }
    }

    #[test]
    fn a_skipped_step_moves_nothing() {
        let mut skipping = TrainState::new(vec![1.0, 2.0], AdamWOptions::default());
        let mut plain = skipping.clone();
        let before = Arc::clone(skipping.rows());
        assert_eq!(skipping.apply(1, &reduced(f32::NAN), 0.1), Ok(StepOutcome::Skipped));
        assert_eq!(skipping.rows(), &before);
        assert_eq!(skipping.apply(2, &reduced(0.5), 0.1), Ok(StepOutcome::Applied));
        plain.apply(2, &reduced(0.5), 0.1).unwrap();
        assert_eq!(skipping, plain);
        // A copy that a microbatch still holds is not changed under it.
        assert_eq!(*before, [1.0, 2.0]);
    }

    #[test]
    fn the_optimizer_sees_the_clipped_gradient() {
        let plain = TrainState::new(vec![1.0, 2.0], AdamWOptions::default());
        let (mut clipping, mut generous) =
            (plain.clone().with_max_grad_norm(Some(0.5)), plain.clone().with_max_grad_norm(Some(50.0)));
        let (mut plain, mut halved) = (plain.clone(), plain);
        // Two steps: the first is the learning rate against the sign, however long the gradient is.
        for (step, gradient) in [(1, 3.0f32), (2, 0.1)] {
            clipping.apply(step, &reduced(gradient), 0.1).unwrap();
            generous.apply(step, &reduced(gradient), 0.1).unwrap();
            plain.apply(step, &reduced(gradient), 0.1).unwrap();
            let short = if step == 1 { clipped(&[3.0; 2], 0.5)[0] } else { gradient };
            halved.apply(step, &reduced(short), 0.1).unwrap();
        }
        assert_eq!(clipping.rows(), halved.rows());
        assert_eq!(generous.rows(), plain.rows());
        assert_ne!(clipping.rows(), plain.rows());
        assert_eq!(clipping.apply(3, &reduced(f32::NAN), 0.1), Ok(StepOutcome::Skipped));
    }

    #[test]
    fn ten_in_a_row_fail_and_nine_do_not() {
        let mut state = TrainState::new(vec![0.0; 2], AdamWOptions::default());
        for round in 0..2 {
            for step in 1..10 {
                assert_eq!(state.apply(step, &reduced(f32::INFINITY), 0.1), Ok(StepOutcome::Skipped));
            }
            if round == 0 {
                state.apply(10, &reduced(1.0), 0.1).unwrap();
            }
        }
        let tenth = state.apply(20, &reduced(f32::NAN), 0.1);
        assert!(matches!(tenth, Err(Error::NotFinite { step: 20, in_a_row: 10, .. })));
    }

    #[test]
    fn a_gradient_of_another_length_is_refused() {
        let mut state = TrainState::new(vec![0.0; 3], AdamWOptions::default());
        assert!(matches!(state.apply(1, &reduced(1.0), 0.1), Err(Error::GradientLength { .. })));
    }
}
