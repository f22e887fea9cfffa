//! What happens because nothing happened.

use ringtune_shared::ids::{JobId, WorkerId};

use super::Turn;
use crate::core::deadlines::Subject;
use crate::core::effect::Action;
use crate::core::input::Sender;
use crate::core::job::{Job, JobState, Member, Phase, Ring};
use crate::core::reason::Failure;
use crate::core::record::{EventBody, LogLevel};
use crate::core::time::Time;

impl Turn<'_> {
    /// Looks at whoever has a deadline by now, and notes when to look again.
    pub(super) fn tick(&mut self) {
        for subject in self.cluster.deadlines.take_due(self.now) {
            let next = match subject {
                Subject::Worker(id) => {
                    self.tick_worker(id);
                    self.worker_deadline(id)
                }
                Subject::Job(id) => {
                    self.tick_job(id);
                    self.job_deadline(id)
                }
            };
            if let Some(next) = next {
                // Not now again: whatever was due has been done.
                self.cluster.deadlines.by(subject, next.max(self.now.plus(1)));
            }
        }
    }

    fn tick_worker(&mut self, id: WorkerId) {
        let (timeout, forget) = (self.cluster.options.session_timeout, self.cluster.options.forget_worker);
        let Some(worker) = self.cluster.workers.get(&id).cloned() else { return };
        if worker.rests_until.is_some_and(|until| until <= self.now) {
            self.cluster.change_worker(id, |worker| worker.rests_until = None);
        }
        if let Some(session) = worker.session {
            if worker.last_sign.plus(timeout) <= self.now {
                let reason = format!("nothing heard for {} s", timeout / 1000);
                self.effects.actions.push(Action::Close(session, reason));
                self.session_ended(Sender { worker: id, session });
            }
        } else if worker.rank.is_none() && worker.lost.is_some_and(|lost| lost.plus(forget) <= self.now) {
            self.cluster.remove_worker(id);
        }
    }

    fn worker_deadline(&self, id: WorkerId) -> Option<Time> {
        let options = &self.cluster.options;
        let worker = self.cluster.workers.get(&id)?;
        let next = match (worker.session, worker.lost) {
            (None, Some(_)) if worker.rank.is_some() => self.now.plus(options.session_timeout),
            (None, Some(lost)) => lost.plus(options.forget_worker),
            _ => worker.last_sign.plus(options.session_timeout),
        };
        Some(worker.rests_until.map_or(next, |until| until.min(next)))
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

    fn job_deadline(&self, id: JobId) -> Option<Time> {
        let job = self.cluster.jobs.get(&id)?;
        let ring = job.ring.as_ref()?;
        if let Some(cancel) = &job.cancel {
            return Some(cancel.deadline);
        }
        let members = ring.members.iter().map(|member| self.member_deadline(ring, member));
        members.chain(ring.broken.as_ref().map(|broken| broken.fail_by)).chain(job.finish_by).min()
    }

    /// By when a member must be back, or must say that it holds its rank.
    fn member_deadline(&self, ring: &Ring, member: &Member) -> Time {
        let timeout = self.cluster.options.session_timeout;
        let Some(worker) = self.cluster.workers.get(&member.worker) else { return ring.patience };
        match worker.lost {
            Some(lost) => lost.plus(timeout).max(ring.patience),
            None => worker.last_held.plus(timeout),
        }
    }

    /// The first rank whose worker is gone for too long, as a reason.
    fn lost_rank(&self, job: &Job, ring: &Ring) -> Option<String> {
        let overdue = |member: &Member| self.member_deadline(ring, member) <= self.now;
        let (rank, member) = ring.members.iter().enumerate().find(|(_, member)| overdue(member))?;
        let (host, seconds) = (&member.host_name, self.cluster.options.session_timeout / 1000);
        Some(match self.cluster.workers.get(&member.worker).map(|worker| worker.lost) {
            None => format!(
                "worker lost: rank {rank} on {host} (worker {}) did not come back within {} s after the \
                 coordinator's restart",
                member.worker,
                self.cluster.options.recovery / 1000
            ),
            Some(Some(_)) => {
                format!("worker lost: rank {rank} on {host} did not come back within {seconds} s")
            }
            Some(None) => format!(
                "rank {rank} on {host}: the worker does not hold it ({} the rank of job {})",
                if member.phase == Phase::Assigned { "never took" } else { "dropped" },
                job.id
            ),
        })
    }
}
