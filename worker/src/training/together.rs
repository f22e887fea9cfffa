//! Training of which the ranks have parts of the state together: when they bring it together, and for what.

use std::future::Future;

use ringtune_shared::ring::RingError;

use super::{
    files::TrainingFiles,
    steps::Training,
    trainee::{Collect, Course, Trainee, Wish},
};
use crate::{
    rank::{Error, GivenUp, Orders, Rank},
    rank_state::RankState,
    ring::RankRing,
};

impl<T: Trainee> Training<T> {
    /// Whether rank 0 is to keep the state after a step, where the ranks have it together: all of them know.
    pub(super) fn is_due_together(&self, step: u64) -> bool {
        let Course { checkpointing_steps: every, proof, .. } = self.trainee.course();
        let is_due = step > 0 && *every > 0 && step.is_multiple_of(*every);
        self.trainee.is_shared() && proof.is_none() && is_due
    }

    /// Brings the state that the ranks have together to rank 0.
    pub(super) async fn collect(
        &mut self,
        rank: &Rank,
        ring: &mut RankRing,
        given_up: &mut GivenUp<impl Future<Output = RingError>>,
    ) -> Result<(), Error> {
        let wanted = if rank.assignment.is_first() { Collect::Here } else { Collect::Elsewhere };
        tokio::select! {
            collected = self.trainee.collect(wanted, ring) => collected,
            error = given_up.reason() => Err(error),
        }
    }

    /// What this rank wants besides the next step.
    pub(super) fn wish(&self, orders: &Orders) -> Wish {
        let keeps = orders.borrow().end.is_some_and(|end| end.keep_artifacts);
        let is_due = self.files.as_ref().is_some_and(TrainingFiles::recovery_is_due);
        match (keeps, is_due) {
            (true, _) => Wish::End,
            (false, true) => Wish::State,
            (false, false) => Wish::Nothing,
        }
    }

    /// All that goes on from the settled step; none, where parts of it are on other ranks.
    pub(super) fn whole_state(&self) -> Option<RankState> {
        match self.trainee.is_shared() {
            true => self.trainee.whole_state(self.step()),
            false => Some(self.settled.state.clone()),
        }
    }
}
