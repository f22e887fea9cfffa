//! What follows when a node fails to prepare a rank.

use ringtune_shared::ids::{JobId, WorkerId};

use super::Turn;
use crate::core::deadlines::Subject;
use crate::core::job::JobState;
use crate::core::reason::Failure;

impl Turn<'_> {
    /// A rank failed in its preparation, and not by a fault of the job's: its worker gets no other for a while, and the
    /// job another ring, unless it has had as many as it may.
    pub(super) fn node_failed(&mut self, job: JobId, worker: WorkerId, reason: &str) {
        self.let_rest(worker);
        let tries = self.cluster.options.tries;
        let rings = self.cluster.jobs.get(&job).map_or(tries, |job| job.rings);
        if rings >= tries {
            let reason =
                if rings > 1 { format!("{reason} (tried {rings} times)") } else { reason.to_owned() };
            self.fail_job(job, Failure::Rank, &reason);
            return;
        }
        let reason = self.cut(&format!("{reason}; trying again elsewhere"));
        if self.set_state(job, JobState::Queued, reason.clone()) {
            self.dissolve_ring(job, &reason);
            if let Some(job) = self.job_mut(job) {
                // Decided with the next ring.
                job.precision = None;
            }
        }
    }

    /// A worker that keeps failing is asked less and less often, but never given up.
    fn let_rest(&mut self, worker: WorkerId) {
        let (first, longest) = (self.cluster.options.rest, self.cluster.options.longest_rest);
        let now = self.now;
        let until = self.cluster.change_worker(worker, |worker| {
            let doublings = worker.failures.min(32);
            worker.failures = worker.failures.saturating_add(1);
            let until = now.plus(first.saturating_mul(1 << doublings).min(longest));
            worker.rests_until = Some(until);
            until
        });
        if let Some(until) = until {
            self.cluster.deadlines.by(Subject::Worker(worker), until);
        }
    }
}

#[cfg(test)]
mod tests;
