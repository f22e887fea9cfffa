//! How a job leaves its ring: at once, or once its ranks have stopped.

use ringtune_shared::ids::JobId;

use super::Turn;
use crate::core::deadlines::Subject;
use crate::core::effect::Down;
use crate::core::failure::Failure;
use crate::core::job_state::JobState;
use crate::core::stop::{Goal, Stop};

impl Turn<'_> {
    /// Tells the ranks of a job to keep what they have and to stop. When all have, or their time is over, the job becomes
    /// what the goal says. It takes the place of a goal that there was. Nothing happens where the job may not become that.
    pub(super) fn stop_job(&mut self, id: JobId, goal: Goal) {
        let Some(job) = self.cluster.jobs.get(&id).filter(|job| job.state.may_become(goal.state())) else {
            return;
        };
        let Some(ring) = job.ring.clone() else { return };
        let deadline = self.now.plus(self.cluster.options.cancel);
        self.cluster.deadlines.by(Subject::Job(id), deadline);
        if let Some(reason) = goal.reason() {
            self.drop_joiners(id, reason);
            for (_, member) in ring.present() {
                let (epoch, reason) = (ring.epoch, reason.to_owned());
                self.tell(member.worker, Down::StopRank { job: id, epoch, reason, keep_artifacts: true });
            }
        }
        if let Some(job) = self.job_mut(id) {
            job.stop = Some(Stop { goal, deadline });
        }
        self.advance(id);
    }

    /// A job becomes what a goal says, where it may, and lets all its ranks go.
    pub(super) fn reach(&mut self, id: JobId, goal: &Goal) {
        match goal {
            Goal::Succeeded if self.cluster.jobs.get(&id).is_some_and(|job| job.lacks_proof()) => {
                self.fail_job(id, Failure::Rank, "the ranks finished before all steps were compared");
            }
            Goal::Succeeded => self.end_job(id, JobState::Succeeded, "all ranks finished"),
            Goal::Cancelled { reason } => self.end_job(id, JobState::Cancelled, reason),
            Goal::Failed { failure, reason } => self.fail_job(id, *failure, reason),
            Goal::Queued { reason, preempted } => self.queue_again(id, reason, *preempted),
        }
    }

    /// Ends a job that failed, where it may fail.
    fn fail_job(&mut self, id: JobId, failure: Failure, reason: &str) {
        let may_fail = self.cluster.jobs.get(&id).is_some_and(|job| job.state.may_become(JobState::Failed));
        if may_fail && let Some(job) = self.job_mut(id) {
            job.failure = Some(failure);
        }
        self.end_job(id, JobState::Failed, reason);
    }

    /// Takes a job's ring away and gives it its place in the queue back, where it may have it; or pauses it, if that was asked
    /// for. It stays bound to what was pinned with its first ring once it has begun; before that any other class would do as
    /// well.
    fn queue_again(&mut self, id: JobId, reason: &str, preempted: bool) {
        let Some(job) = self.cluster.jobs.get(&id).filter(|job| job.state.may_become(JobState::Queued))
        else {
            return;
        };
        let (to, reason) = match job.pauses() {
            true => (JobState::Paused, job.why_it_pauses()),
            false => (JobState::Queued, self.cut(reason)),
        };
        // The ring says it.
        let has_begun = job.has_begun();
        self.dissolve_ring(id, &reason);
        // Before it is in the queue, where it stands by its pin.
        self.settle_without_ring(id);
        if let Some(job) = self.job_mut(id) {
            (job.stop, job.preempted) = (None, preempted && to == JobState::Queued);
            // What it verifies was computed on no other class.
            if !has_begun && job.verification.is_none() {
                job.pin = None;
            }
        }
        self.set_state(id, to, reason);
    }

    /// Ends a job and lets all its ranks go. Nothing happens where it may not end so.
    pub(super) fn end_job(&mut self, id: JobId, to: JobState, reason: &str) {
        let reason = self.cut(reason);
        if !to.is_terminal() || !self.set_state(id, to, reason.clone()) {
            return;
        }
        if let Some(job) = self.job_mut(id) {
            job.stop = None;
        }
        self.drop_recovery_points(id, u64::MAX);
        self.dissolve_ring(id, &reason);
        if let Some(job) = self.cluster.remove_job(id) {
            self.sweeps.extend(job.sweep.iter().map(|place| place.sweep));
            self.ended.insert(id, job);
        }
    }
}

#[cfg(test)]
mod tests;
