//! What happens because nothing happened.

use ringtune_shared::ids::{JobId, WorkerId};

use super::Turn;
use crate::core::effect::Action;
use crate::core::input::Sender;
use crate::core::job::{Job, JobState, Ring};
use crate::core::reason::Failure;
use crate::core::record::{EventBody, LogLevel};

impl Turn<'_> {
    /// Checks every deadline.
    pub(super) fn tick(&mut self) {
        self.lose_silent_sessions();
        self.forget_lost_workers();
        let active: Vec<JobId> =
            self.cluster.jobs.values().filter(|job| job.ring.is_some()).map(|job| job.id).collect();
        for id in active {
            self.tick_job(id);
        }
    }

    fn lose_silent_sessions(&mut self) {
        let timeout = self.cluster.options.session_timeout;
        let silent: Vec<Sender> = self
            .cluster
            .workers
            .values()
            .filter(|worker| worker.last_sign.plus(timeout) <= self.now)
            .filter_map(|worker| Some(Sender { worker: worker.id, session: worker.session? }))
            .collect();
        for sender in silent {
            let reason = format!("nothing heard for {} s", timeout / 1000);
            self.effects.actions.push(Action::Close(sender.session, reason));
            self.session_ended(sender);
        }
    }

    fn forget_lost_workers(&mut self) {
        let after = self.cluster.options.forget_worker;
        let now = self.now;
        self.cluster.workers.retain(|_, worker| {
            worker.rank.is_some() || worker.lost.is_none_or(|lost| lost.plus(after) > now)
        });
    }

    fn tick_job(&mut self, id: JobId) {
        let Some(job) = self.cluster.jobs.get(&id).cloned() else { return };
        let Some(ring) = &job.ring else { return };
        if let Some(cancel) = &job.cancel {
            if cancel.deadline <= self.now {
                self.record(id, EventBody::note(LogLevel::Warn, "not every rank stopped in time"));
                self.end_job(id, JobState::Cancelled, &cancel.reason);
            }
        } else if let Some(reason) = self.lost_rank(&job, ring) {
            self.fail_job(id, Failure::WorkerLost, &reason);
        } else if self.fail_broken(id) {
            // Said with its reason.
        } else if job.finish_by.is_some_and(|deadline| deadline <= self.now) {
            let missing = format!("only the reports of {} steps came", job.step);
            self.record(id, EventBody::note(LogLevel::Warn, missing));
            self.end_job(id, JobState::Succeeded, "all ranks finished");
        }
    }

    /// The first rank whose worker is gone for too long, as a reason.
    fn lost_rank(&self, job: &Job, ring: &Ring) -> Option<String> {
        let timeout = self.cluster.options.session_timeout;
        ring.members.iter().enumerate().find_map(|(rank, member)| {
            let host = &member.host_name;
            let Some(worker) = self.cluster.workers.get(&member.worker) else {
                return (ring.patience <= self.now).then(|| self.never_back(rank, host, member.worker));
            };
            match worker.lost {
                Some(lost) if lost.plus(timeout).max(ring.patience) <= self.now => Some(format!(
                    "worker lost: rank {rank} on {host} did not come back within {} s",
                    timeout / 1000
                )),
                None if member.last_held.plus(timeout) <= self.now => Some(format!(
                    "rank {rank} on {host}: the worker does not hold it ({} the rank of job {})",
                    if member.phase == crate::core::Phase::Assigned { "never took" } else { "dropped" },
                    job.id
                )),
                _ => None,
            }
        })
    }

    fn never_back(&self, rank: usize, host: &str, worker: WorkerId) -> String {
        format!(
            "worker lost: rank {rank} on {host} (worker {worker}) did not come back within {} s after the \
             coordinator's restart",
            self.cluster.options.recovery / 1000
        )
    }
}
