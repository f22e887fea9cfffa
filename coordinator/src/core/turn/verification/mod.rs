//! Jobs that compute steps of other jobs again.

use ringtune_shared::ids::{ContentHash, Epoch, JobId};

use super::Turn;
use crate::core::effect::OtherEpoch;
use crate::core::record::StepRecord;
use crate::core::refusal::Refusal;
use crate::core::session::Sender;
use crate::core::stop::Goal;
use crate::core::verification::Finding;

impl Turn<'_> {
    /// Rank 0 of a verification did a step. `stored`: the state after it, as it is stored with the job that is verified.
    /// Where it is the same the step counts like any other; where it is not the verification is over.
    pub(super) fn step_again(
        &mut self,
        sender: Sender,
        id: JobId,
        epoch: Epoch,
        step: StepRecord,
        stored: Option<ContentHash>,
    ) -> Result<(), Refusal> {
        let verification = self.cluster.jobs.get(&id).and_then(|job| job.verification.clone());
        let Some(mut verification) = verification else { return self.rank_step(sender, id, epoch, step) };
        let finding = verification.compare(&step, stored);
        let Some((failure, reason)) = verification.failure(finding, step.step) else {
            return self.rank_step(sender, id, epoch, step);
        };
        self.heard(sender)?;
        let is_of_ring = self.is_of_ring(id, epoch, OtherEpoch::Step);
        let first = self.ring(id).and_then(|ring| ring.members.first().map(|first| first.worker));
        if !is_of_ring || first != Some(sender.worker) || step.step > verification.last_step {
            return Ok(());
        }
        if let Finding::Differs(difference) = finding
            && let Some(job) = self.job_mut(id)
        {
            verification.difference = Some(difference);
            job.verification = Some(verification);
        }
        self.reach(id, &Goal::Failed { failure, reason });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
