//! The steps of a job that learns, and what happens again and again while it does.

/// Whether something that happens every so many steps, and after the last, happens after `step` of `total_steps`. `every`
/// of 0: never.
pub(super) fn is_due(every: u64, step: u64, total_steps: u64) -> bool {
    every > 0 && (step.is_multiple_of(every) || step == total_steps)
}

/// How many steps a job has, where it goes on, and when it may end, as its options say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steps<'a> {
    /// Optimizer updates; 0 while they are not known yet.
    pub(crate) total: u64,
    /// The last one that is taken: an order may end the job before.
    pub(crate) last: u64,
    /// The option that says so, by its full name.
    pub(crate) option: &'static str,
    /// Where it goes on, as [`super::ResumeFrom`] reads it; empty: nowhere.
    pub(super) resume_from: &'a str,
    /// The option that says so, by its full name.
    pub(super) resume_option: &'static str,
    /// So many checkpoints are kept, the newest; 0: all.
    pub(super) checkpoints_total_limit: u64,
    /// Whether the learning rate of a step follows from how many there are.
    pub(super) total_decides_rates: bool,
    /// The validation loss is taken every so many steps, and after the last; 0: never.
    pub(super) validation_interval: u64,
    /// Whether the state with the lowest validation loss is the job's result.
    pub(super) select_best: bool,
    /// It ends after so many validations without a lower loss; 0: never.
    pub(super) early_stop_patience: u64,
}

impl Steps<'_> {
    /// Whether how many there are has decided anything up to `step`. A run may become longer where no step up to it depends
    /// on how many there are: a learning rate may, and so does a validation that was due only because `step` was the last.
    pub(crate) fn total_decides(&self, step: u64) -> bool {
        self.total_decides_rates || self.is_judged_as_the_last(step)
    }

    /// Whether the state after `step` was judged because no other comes after it, and that decides something.
    pub(crate) fn is_judged_as_the_last(&self, step: u64) -> bool {
        let every = self.validation_interval;
        step == self.last
            && (self.select_best || self.early_stop_patience > 0)
            && is_due(every, step, step)
            && !is_due(every, step, u64::MAX)
    }

    /// What is said of a training that succeeded after `done` of them.
    pub(super) fn success(&self, done: u64) -> String {
        let Self { total, last, early_stop_patience, .. } = self;
        if done >= *total {
            return format!("{done} steps done");
        }
        if done >= *last {
            return format!("{done} of {total} steps done: stopped by an order");
        }
        format!(
            "{done} of {total} steps done: stopped early, no lower validation loss in {early_stop_patience} validations"
        )
    }
}
