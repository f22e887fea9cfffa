//! A list of learning rates stands in place of one rate and its schedule.

use super::{
    super::{TrainDraft, TrainSpec},
    Check,
};
use crate::job::{LearningRates, LrScheduler};

const FIELD: &str = "train.learning_rates";

impl Check {
    /// `train.learning_rates`; empty counts as not given. What it replaces must not be given beside it: who wrote
    /// both expects the other one to count.
    pub(super) fn learning_rates(&mut self, draft: &TrainDraft) -> Option<LearningRates> {
        let text = draft.learning_rates.as_deref().filter(|text| !text.trim().is_empty())?;
        let rates: LearningRates = match text.parse() {
            Ok(rates) => rates,
            Err(problem) => {
                self.refuse(FIELD, problem);
                return None;
            }
        };
        // A job that was written out in full has the first of the rates here.
        if let Some(rate) = draft.learning_rate.filter(|rate| *rate != rates.at(1)) {
            let problem = format!(
                "got {rate} together with learning_rates, which gives the rate of every step: leave one out"
            );
            self.refuse("train.learning_rate", problem);
        }
        if let Some(name) =
            draft.lr_scheduler.as_deref().filter(|name| *name != LrScheduler::Constant.as_str())
        {
            let problem = format!(
                "got {name:?} together with learning_rates, which is a schedule of its own: leave one out"
            );
            self.refuse("train.lr_scheduler", problem);
        }
        if let Some(steps) = draft.lr_warmup_steps.filter(|steps| *steps != 0) {
            let problem = format!(
                "got {steps} together with learning_rates, which has no warm-up: leave it out, and begin with small rates"
            );
            self.refuse("train.lr_warmup_steps", problem);
        }
        Some(rates)
    }

    /// There must be a rate for every step.
    pub(super) fn rates_reach_the_end(&mut self, train: &TrainSpec) {
        let Some(end) = train.learning_rates.as_ref().and_then(LearningRates::end) else { return };
        if end < train.max_train_steps {
            let problem = format!(
                "its last rate ends at step {end}, and max_train_steps is {}; leave that step out, or train for fewer",
                train.max_train_steps
            );
            self.refuse(FIELD, problem);
        }
    }
}
