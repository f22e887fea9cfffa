//! Steps that moved nothing.

use super::{Error, SavedState};

/// Steps that are not finite, one after the other, that a job survives is one less.
const MOST: u64 = 10;

/// How many of the last steps, one after the other, were skipped because their loss or gradient was not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkippedInARow(u64);

impl SkippedInARow {
    /// Takes in step `step`, of this loss.
    ///
    /// # Errors
    /// It is the tenth in a row that was skipped.
    pub fn take_in(&mut self, step: u64, skipped: bool, loss: f32) -> Result<(), Error> {
        self.0 = if skipped { self.0 + 1 } else { 0 };
        if self.0 < MOST {
            return Ok(());
        }
        let in_a_row = u32::try_from(self.0).unwrap_or(u32::MAX);
        Err(Error::NotFinite { step, in_a_row, loss, gradients: String::new() })
    }

    /// For a checkpoint, as the counter `name`.
    pub(crate) fn save(self, name: &str, saved: &mut SavedState) {
        saved.put_number(name, self.0);
    }

    /// As it was saved.
    ///
    /// # Errors
    /// It is not there; or there were too many, so that the job had failed.
    pub(crate) fn restored(name: &str, saved: &mut SavedState) -> Result<Self, Error> {
        match saved.take_number(name)? {
            skipped if skipped < MOST => Ok(Self(skipped)),
            skipped => {
                Err(Error::Checkpoint { problem: format!("{name} is {skipped}: that job had failed") })
            }
        }
    }
}
