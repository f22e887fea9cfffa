//! Reports of steps: what the coordinator may not have of them, and those that come with another rank's state.

use std::collections::VecDeque;

use crate::session::StepSummary;

/// Steps kept for a coordinator that has not stored them; the oldest go first.
const MOST_UNSTORED: usize = 200_000;

/// The reports that a rank has.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// They belong to a state that is being restored.
    arriving: VecDeque<StepSummary>,
    /// They belong to a state that was restored, and are not told yet.
    arrived: VecDeque<StepSummary>,
    /// Steps done that may not be stored yet.
    unstored: VecDeque<StepSummary>,
    /// Steps up to this one are stored, as far as any rank of a ring knew.
    stored_step: u64,
}

impl Reports {
    /// A state begins to be restored that these belong to.
    pub(super) fn arriving(&mut self, reports: Vec<StepSummary>) {
        self.arriving = reports.into();
    }

    /// The state is restored, that after `step`. Gives the report of that step where `is_open` says that not all of it is found out yet:
    /// it is told when it is.
    pub(super) fn arrived(
        &mut self,
        step: u64,
        is_open: impl Fn(&StepSummary) -> bool,
    ) -> Option<StepSummary> {
        self.arrived.append(&mut self.arriving);
        self.arrived.pop_back_if(|last| last.step == step && is_open(last))
    }

    /// The first one of those that are to be told.
    pub(super) fn first_arrived(&self) -> Option<StepSummary> {
        self.arrived.front().copied()
    }

    /// It is told.
    pub(super) fn first_is_told(&mut self) {
        self.arrived.pop_front();
    }

    /// A step is done.
    pub(super) fn add(&mut self, summary: StepSummary) {
        if self.unstored.len() >= MOST_UNSTORED {
            self.unstored.pop_front();
        }
        self.unstored.push_back(summary);
    }

    /// Takes note of how far the steps are stored. Whether that is news.
    pub(super) fn are_stored(&mut self, step: u64) -> bool {
        if step <= self.stored_step {
            return false;
        }
        self.stored_step = step;
        while self.unstored.front().is_some_and(|first| first.step <= step) {
            self.unstored.pop_front();
        }
        true
    }

    /// Steps up to this one are stored.
    pub(super) fn stored_step(&self) -> u64 {
        self.stored_step
    }

    /// Whether a step is done and may not be stored yet.
    pub(super) fn has(&self, step: u64) -> bool {
        self.unstored.iter().any(|one| one.step == step)
    }

    /// The steps done that may not be stored yet, in their order.
    pub(super) fn unstored(&self) -> impl Iterator<Item = StepSummary> + '_ {
        self.unstored.iter().copied()
    }

    /// The same, in one piece.
    pub(super) fn all_unstored(&mut self) -> &[StepSummary] {
        self.unstored.make_contiguous()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(reports: impl Iterator<Item = StepSummary>) -> Vec<u64> {
        reports.map(|report| report.step).collect()
    }

    #[test]
    fn reports_come_with_the_state_that_they_belong_to() {
        let mut reports = Reports::default();
        let of = |all: std::ops::Range<u64>| all.map(StepSummary::example).collect::<Vec<_>>();
        // That state never came; another one did.
        reports.arriving(of(1..9));
        reports.arriving(of(4..7));
        assert_eq!(reports.first_arrived(), None);
        assert_eq!(reports.arrived(6, |_| true).map(|open| open.step), Some(6));
        let mut told = Vec::new();
        while let Some(first) = reports.first_arrived() {
            told.push(first.step);
            reports.first_is_told();
        }
        assert_eq!(told, [4, 5]);
        // Of the next one all is found out.
        reports.arriving(of(7..9));
        assert_eq!(reports.arrived(8, |_| false), None);
        assert_eq!(reports.first_arrived().map(|first| first.step), Some(7));
    }

    #[test]
    fn what_is_stored_is_forgotten() {
        let mut reports = Reports::default();
        (1..6).for_each(|step| reports.add(StepSummary::example(step)));
        assert!(reports.are_stored(3) && !reports.are_stored(3) && !reports.are_stored(2));
        assert_eq!((steps(reports.unstored()), reports.stored_step()), (vec![4, 5], 3));
        assert!(reports.has(4) && !reports.has(3));
        assert_eq!(steps(reports.all_unstored().iter().copied()), [4, 5]);
    }
}
