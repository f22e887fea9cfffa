//! Which embedding is the best so far, and whether it is worth going on.

use std::sync::Arc;

use super::{Error, SavedState};

const BEST_ROWS: &str = "selection.best_rows";
const BEST_LOSS: &str = "selection.best_loss";
const BEST_STEP: &str = "selection.best_step";
const WITHOUT_IMPROVEMENT: &str = "selection.without_improvement";
const LAST_LOSS: &str = "selection.last_loss";
const LAST_STEP: &str = "selection.last_step";

/// A loss on held-out samples, and what it was taken with.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    /// The step after which it was taken.
    pub step: u64,
    /// The mean over the held-out samples.
    pub loss: f32,
    /// The learned rows after that step.
    pub rows: Arc<Vec<f32>>,
}

/// Follows the validation losses of a job: a pure function of them, so that every rank comes to the same decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// Validations without a lower loss that end training; 0: none do.
    patience: u64,
    best: Option<Best>,
    without_improvement: u64,
    /// The latest validation: its step and its loss.
    last: Option<(u64, f32)>,
}

impl Selection {
    /// Before the first validation. `patience`: train.early_stop_patience.
    pub fn new(patience: u64) -> Self {
        Self { patience, best: None, without_improvement: 0, last: None }
    }

    /// For a checkpoint. Nothing, as long as there was no validation.
    pub(crate) fn save(&self, saved: &mut SavedState) {
        if let Some(Best { step, loss, rows }) = &self.best {
            saved.put_tensor(BEST_ROWS, rows.to_vec());
            saved.put_tensor(BEST_LOSS, vec![*loss]);
            saved.put_number(BEST_STEP, *step);
        }
        if self.best.is_some() || self.without_improvement > 0 {
            saved.put_number(WITHOUT_IMPROVEMENT, self.without_improvement);
        }
        if let Some((step, loss)) = self.last {
            saved.put_number(LAST_STEP, step);
            saved.put_tensor(LAST_LOSS, vec![loss]);
        }
    }

    /// With the same patience, as it was when it was saved. `length`: of the rows.
    ///
    /// # Errors
    /// A part of what was saved is missing, or of another length.
    pub(crate) fn restored(self, saved: &mut SavedState, length: usize) -> Result<Self, Error> {
        if !saved.numbers.contains_key(WITHOUT_IMPROVEMENT) {
            return Ok(self);
        }
        let without_improvement = saved.take_number(WITHOUT_IMPROVEMENT)?;
        let best = if saved.tensors.contains_key(BEST_ROWS) {
            let loss = saved.take_tensor(BEST_LOSS, 1)?.into_iter().sum();
            let rows = Arc::new(saved.take_tensor(BEST_ROWS, length)?);
            Some(Best { step: saved.take_number(BEST_STEP)?, loss, rows })
        } else {
            None
        };
        // Ringtune 0.1.0 did not keep the latest validation.
        let last = if saved.numbers.contains_key(LAST_STEP) {
            let loss = saved.take_tensor(LAST_LOSS, 1)?.into_iter().sum();
            Some((saved.take_number(LAST_STEP)?, loss))
        } else {
            None
        };
        Ok(Self { patience: self.patience, best, without_improvement, last })
    }

    /// Takes in the loss after `step`. Of equal losses the first is the best; one that is not finite never is.
    /// Returns whether this one is the best so far.
    pub fn take_in(&mut self, step: u64, loss: f32, rows: &Arc<Vec<f32>>) -> bool {
        self.last = Some((step, loss));
        let better = loss.is_finite() && self.best.as_ref().is_none_or(|best| loss < best.loss);
        if better {
            self.best = Some(Best { step, loss, rows: Arc::clone(rows) });
            self.without_improvement = 0;
        } else {
            self.without_improvement += 1;
        }
        better
    }

    /// The lowest loss so far.
    pub fn best(&self) -> Option<&Best> {
        self.best.as_ref()
    }

    /// The loss that was taken after `step`, if that was the latest validation.
    pub fn loss_after(&self, step: u64) -> Option<f32> {
        self.last.filter(|(last, _)| *last == step).map(|(_, loss)| loss)
    }

    /// Validations since the lowest loss.
    pub fn without_improvement(&self) -> u64 {
        self.without_improvement
    }

    /// Whether training is to end here.
    pub fn is_over(&self) -> bool {
        self.patience > 0 && self.without_improvement >= self.patience
    }
}

/// The mean of the held-out microbatches' losses (one number a row), added up in their order in fp32.
///
/// # Errors
/// There is no row, or an empty one.
pub fn mean_loss(rows: &[Vec<f32>]) -> Result<f32, Error> {
    let mean = super::ordered_mean(rows).and_then(|mean| mean.first().copied());
    mean.ok_or_else(|| Error::TrainingSet { problem: "it has no held-out sample".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(patience: u64, losses: &[f32]) -> (Selection, Option<u64>) {
        let mut selection = Selection::new(patience);
        let mut stopped = None;
        for (number, loss) in losses.iter().enumerate() {
            let step = number as u64 + 1;
            selection.take_in(step, *loss, &Arc::new(vec![step as f32]));
            if selection.is_over() && stopped.is_none() {
                stopped = Some(step);
            }
        }
        (selection, stopped)
    }

    #[test]
    fn the_first_of_the_lowest_is_the_best() {
        let (selection, stopped) = follow(0, &[f32::NAN, 0.5, 0.25, 0.25, 0.3, f32::NEG_INFINITY]);
        let best = selection.best().unwrap();
        assert_eq!((best.step, best.loss, best.rows.as_slice()), (3, 0.25, &[3.0f32][..]));
        assert_eq!((selection.without_improvement(), stopped), (3, None));
    }

    #[test]
    fn patience_counts_validations_since_the_best() {
        assert_eq!(follow(2, &[0.5, 0.6, 0.4, 0.4, 0.3, 0.4, 0.5, 0.1]).1, Some(7));
        assert_eq!(follow(1, &[0.5, 0.5]).1, Some(2));
        // Losses that are no numbers never improve.
        assert_eq!(follow(3, &[f32::NAN; 4]).1, Some(3));
    }

    #[test]
    fn an_interrupted_job_decides_as_one_that_was_not() {
        let losses = [0.5, 0.4, 0.6, 0.3, 0.35, 0.3, 0.2];
        for cut in 0..losses.len() {
            let (first, _) = follow(2, &losses[..cut]);
            let mut saved = SavedState::default();
            first.save(&mut saved);
            let mut resumed = Selection::new(2).restored(&mut saved, 1).unwrap();
            assert_eq!(saved.finish(), Ok(()));
            for (number, loss) in losses.iter().enumerate().skip(cut) {
                let step = number as u64 + 1;
                resumed.take_in(step, *loss, &Arc::new(vec![step as f32]));
            }
            assert_eq!(resumed, follow(2, &losses).0);
        }
    }

    /// Which did not keep the latest validation, only the best and what followed it.
    #[test]
    fn a_choice_that_0_1_0_saved_goes_on() {
        let (before, _) = follow(2, &[0.5, 0.6]);
        let mut saved = SavedState::default();
        before.save(&mut saved);
        saved.numbers.remove(LAST_STEP).unwrap();
        saved.tensors.remove(LAST_LOSS).unwrap();
        let mut resumed = Selection::new(2).restored(&mut saved, 1).unwrap();
        assert_eq!(saved.finish(), Ok(()));
        assert_eq!((resumed.best(), resumed.without_improvement()), (before.best(), 1));
        assert_eq!((before.loss_after(2), resumed.loss_after(2)), (Some(0.6), None));
        // The second validation without a lower loss ends it, as it would have.
        assert!(!resumed.is_over());
        resumed.take_in(3, 0.7, &Arc::new(vec![3.0]));
        assert!(resumed.is_over());
        assert_eq!(resumed.loss_after(3), Some(0.7));
    }

    #[test]
    fn the_mean_is_added_up_in_order() {
        assert_eq!(mean_loss(&[vec![1.0], vec![1e8], vec![-1e8]]), Ok(0.0));
        assert!(mean_loss(&[]).is_err() && mean_loss(&[Vec::new()]).is_err());
    }
}
