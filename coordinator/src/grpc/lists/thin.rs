//! Fewer steps of a long history, such that a chart of them looks the same. Pure.

use crate::core::StepRecord;

/// Steps that are kept of each part.
const KEPT: u32 = 4;

/// Step numbers: those above `after` up to `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) after: u64,
    pub(super) last: u64,
}

/// Takes a history step by step and keeps at most `points` of it.
///
/// The range is cut into `points / 4` equal parts. Of each these are kept: the step with the lowest loss, the one with
/// the highest, the last one with a validation loss, and the last one. Losses that are not finite are neither lowest
/// nor highest; of equal ones the first counts. The same steps always give the same.
#[derive(Debug)]
pub(super) struct Thinner {
    range: Range,
    parts: u64,
    /// The part that is being filled, and what is kept of it so far.
    part: Option<(u64, Part)>,
    kept: Vec<StepRecord>,
    /// All steps, as long as they are no more than may be kept.
    all: Option<Vec<StepRecord>>,
    points: usize,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    lowest: Option<StepRecord>,
    highest: Option<StepRecord>,
    validated: Option<StepRecord>,
    last: StepRecord,
}

impl Thinner {
    /// `points` is at least 4.
    pub(super) fn new(range: Range, points: u32) -> Self {
        Self {
            range,
            parts: u64::from((points / KEPT).max(1)),
            part: None,
            kept: Vec::new(),
            all: Some(Vec::new()),
            points: points as usize,
        }
    }

    /// The next step; they come in their order.
    pub(super) fn add(&mut self, step: StepRecord) {
        self.all = self.all.take().filter(|all| all.len() < self.points).map(|mut all| {
            all.push(step);
            all
        });
        let number = self.part_of(step.step);
        match &mut self.part {
            Some((current, part)) if *current == number => part.add(step),
            _ => {
                self.close_part();
                self.part = Some((number, Part::new(step)));
            }
        }
    }

    /// What is kept, in order.
    pub(super) fn finish(mut self) -> Vec<StepRecord> {
        self.close_part();
        self.all.unwrap_or(self.kept)
    }

    fn part_of(&self, step: u64) -> u64 {
        let width = self.range.last.saturating_sub(self.range.after).max(1);
        let place = step.saturating_sub(self.range.after).saturating_sub(1);
        // In 128 bits, so that no product of two counts overflows; the quotient is less than the parts.
        let part = u128::from(place) * u128::from(self.parts) / u128::from(width);
        u64::try_from(part).unwrap_or(u64::MAX).min(self.parts - 1)
    }

    fn close_part(&mut self) {
        let Some((_, part)) = self.part.take() else { return };
        let mut kept: Vec<StepRecord> =
            [part.lowest, part.highest, part.validated, Some(part.last)].into_iter().flatten().collect();
        kept.sort_by_key(|step| step.step);
        kept.dedup_by_key(|step| step.step);
        self.kept.extend(kept);
    }
}

impl Part {
    fn new(step: StepRecord) -> Self {
        let finite = Some(step).filter(|step| step.loss.is_finite());
        Self {
            lowest: finite,
            highest: finite,
            validated: Some(step).filter(|step| step.validation_loss.is_some()),
            last: step,
        }
    }

    fn add(&mut self, step: StepRecord) {
        let next = Self::new(step);
        if self.lowest.is_none_or(|lowest| step.loss < lowest.loss) {
            self.lowest = next.lowest.or(self.lowest);
        }
        if self.highest.is_none_or(|highest| step.loss > highest.loss) {
            self.highest = next.highest.or(self.highest);
        }
        self.validated = next.validated.or(self.validated);
        self.last = step;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::{AnyFloat, testing::step_record};

    fn step(step: u64, loss: f64) -> StepRecord {
        StepRecord { loss, skipped: !loss.is_finite(), ..step_record(step) }
    }

    fn thin(after: u64, steps: &[StepRecord], points: u32) -> Vec<u64> {
        let last = steps.last().map_or(after, |step| step.step);
        let mut thinner = Thinner::new(Range { after, last }, points);
        steps.iter().for_each(|step| thinner.add(*step));
        thinner.finish().iter().map(|step| step.step).collect()
    }

    #[test]
    fn a_short_history_is_whole() {
        let steps: Vec<StepRecord> = (1..=8).map(|number| step(number, 1.0)).collect();
        assert_eq!(thin(0, &steps, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(thin(0, &[], 4).is_empty());
    }

    #[test]
    fn of_each_part_peaks_validations_and_the_last_step_are_kept() {
        let mut steps: Vec<StepRecord> = (1..=100).map(|number| step(number, 1.0)).collect();
        steps[9].loss = 9.0;
        steps[19].loss = 0.1;
        steps[29].validation_loss = Some(AnyFloat(1.0));
        steps[39].loss = f64::NAN;
        steps[60].loss = f64::INFINITY;
        // Steps 1 to 50 and 51 to 100; in the second all finite losses are equal, and the first counts.
        assert_eq!(thin(0, &steps, 8), [10, 20, 30, 50, 51, 100]);
        assert_eq!(thin(0, &steps, 4), [10, 20, 30, 100]);
        assert_eq!(thin(50, &steps[50..], 4), [51, 100]);
    }

    #[test]
    fn a_part_without_a_finite_loss_keeps_its_last_step() {
        let steps: Vec<StepRecord> = (1..=9).map(|number| step(number, f64::NAN)).collect();
        assert_eq!(thin(0, &steps, 4), [9]);
    }

    proptest! {
        #[test]
        fn there_are_never_more_than_asked_for_and_extremes_are_among_them(
            losses in proptest::collection::vec(-1e3_f64..1e3, 1..300),
            after in 0_u64..1_000_000,
            points in 4_u32..60,
        ) {
            let steps: Vec<StepRecord> =
                (after + 1..).zip(&losses).map(|(number, loss)| step(number, *loss)).collect();
            let kept = thin(after, &steps, points);
            prop_assert!(kept.len() <= points as usize);
            prop_assert!(kept.is_sorted_by(|one, other| one < other));
            let loss_of = |number: &u64| losses[(number - after - 1) as usize];
            let highest = losses.iter().copied().fold(f64::MIN, f64::max);
            let lowest = losses.iter().copied().fold(f64::MAX, f64::min);
            prop_assert!(kept.iter().any(|number| loss_of(number) == highest));
            prop_assert!(kept.iter().any(|number| loss_of(number) == lowest));
            prop_assert_eq!(kept.last().copied(), Some(after + losses.len() as u64));
        }
    }
}
