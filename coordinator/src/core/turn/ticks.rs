//! Deadlines and ticks: what the core does when time passes without input.

use ringtune_shared::ids::{JobId, WorkerId};

use super::Turn;
use crate::core::deadlines::Subject;
use crate::core::effect::Action;
use crate::core::failure::Failure;
use crate::core::job::{Member, Ring};
use crate::core::job_state::JobState;
use crate::core::record::{EventBody, LogLevel};
use crate::core::session::Sender;
use crate::core::stop::Goal;
use crate::core::time::Time;

/// How often what owners use is counted, in milliseconds.
const COUNT_USE: i64 = 10_000;

impl Turn<'_> {
    /// Looks at whoever has a deadline by now, and notes when to look again.
    pub(super) fn tick(&mut self) {
        if self.cluster.use_counted.plus(COUNT_USE) <= self.now {
            self.cluster.use_counted = self.now;
            self.cluster.count_use(self.now);
        }
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
        let is_over = |until: Option<Time>| until.is_some_and(|until| until <= self.now);
        if is_over(worker.rests_until) {
            self.cluster.change_worker(id, |worker| worker.rests_until = None);
        }
        if worker.doubts.iter().any(|doubt| is_over(doubt.until)) {
            self.cluster.change_worker(id, |worker| {
                let over = worker.doubts.iter_mut().filter(|doubt| is_over(doubt.until));
                over.for_each(|doubt| doubt.until = None);
            });
        }
        if let Some(session) = worker.session {
            if worker.last_sign.plus(timeout) <= self.now {
                let reason = format!("nothing heard for {} s", timeout / 1000);
                self.effects.actions.push(Action::Close(session, reason));
                self.session_ended(Sender { worker: id, session });
            }
        } else if self.cluster.place_of(id).is_none()
            && worker.lost.is_some_and(|lost| lost.plus(forget) <= self.now)
        {
            self.cluster.remove_worker(id);
        }
    }

    fn worker_deadline(&self, id: WorkerId) -> Option<Time> {
        let options = &self.cluster.options;
        let worker = self.cluster.workers.get(&id)?;
        let next = match (worker.session, worker.lost) {
            (None, Some(_)) if self.cluster.place_of(id).is_some() => self.now.plus(options.session_timeout),
            (None, Some(lost)) => lost.plus(options.forget_worker),
            _ => worker.last_sign.plus(options.session_timeout),
        };
        let doubts = worker.doubts.iter().filter_map(|doubt| doubt.until);
        let rests = worker.rests_until.into_iter().chain(doubts);
        rests.chain([next]).min()
    }

    fn tick_job(&mut self, id: JobId) {
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        if job.ends_by().is_some_and(|end| end <= self.now) && self.out_of_time(id) {
            return;
        }
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        if job.state == JobState::Queued {
            if job.waits_since.plus(self.cluster.options.longest_wait) <= self.now {
                self.cluster.make_overdue(id, self.now);
            }
            return;
        }
        let told = job.told_to_stop().is_some();
        if !told {
            self.look_at_joiners(id);
            self.look_at_apart(id);
            if let Some((worker, loss, reason)) = self.overdue_rank(id) {
                self.lose(id, worker, loss, &reason);
                return;
            }
            if self.look_at_broken(id) {
                return;
            }
            self.look_at_ring(id);
        }
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        let Some(stop) = job.stop.clone().filter(|stop| stop.deadline <= self.now) else { return };
        let told = job.told_to_stop().is_some();
        let missing = match told {
            true => "not every rank stopped in time".to_owned(),
            false => format!("only {} steps were reported", job.step),
        };
        self.record(id, EventBody::note(LogLevel::Warn, missing));
        self.reach(id, &stop.goal);
    }

    /// A job is not done by the time by which it had to be: it fails. Whether it was on no way to its end already.
    fn out_of_time(&mut self, id: JobId) -> bool {
        let Some(job) = self.cluster.jobs.get(&id) else { return false };
        let ends = job.stop.as_ref().is_some_and(|stop| stop.goal.state() != JobState::Queued);
        if ends || job.state.is_terminal() {
            return false;
        }
        let (queue, failure) = (&job.queue, Failure::OutOfTime);
        let by_deadline = queue.ends_by(None).is_some_and(|end| Time(end) <= self.now);
        let reason = match by_deadline {
            true => format!("queue.deadline is over: {}", queue.deadline),
            false => format!("queue.max_seconds is over: {} s", queue.max_seconds),
        };
        let goal = Goal::Failed { failure, reason };
        if job.ring.is_some() {
            self.stop_job(id, goal);
        } else {
            self.reach(id, &goal);
        }
        true
    }

    fn job_deadline(&self, id: JobId) -> Option<Time> {
        let job = self.cluster.jobs.get(&id)?;
        let end = job.ends_by().filter(|end| self.now < *end);
        let Some(ring) = &job.ring else {
            let queued = job.state == JobState::Queued && !job.overdue;
            let overdue = queued.then(|| job.waits_since.plus(self.cluster.options.longest_wait));
            return end.into_iter().chain(overdue).min();
        };
        if let Some(stop) = job.told_to_stop() {
            return Some(stop.deadline);
        }
        let members = ring.present().filter_map(|(_, member)| self.member_deadline(ring, member));
        let joiners = ring.joining.iter().map(|joiner| self.joiner_deadline(ring, joiner));
        let stop = job.stop.as_ref().map(|stop| stop.deadline);
        let ring_alone = self.reform_deadline(id);
        members
            .chain(joiners)
            .chain(ring_alone)
            .chain(self.links_deadline(id))
            .chain(ring.broken.as_ref().map(|broken| broken.fail_by))
            .chain(stop)
            .chain(end)
            .min()
    }

    /// Deadline by which a member must be back, or must report that it holds its rank. A ring that can re-form decides by
    /// itself about absent members.
    pub(super) fn member_deadline(&self, ring: &Ring, member: &Member) -> Option<Time> {
        let timeout = self.cluster.options.session_timeout;
        let worker = self.cluster.workers.get(&member.worker);
        match worker.map(|worker| (worker.lost, worker.last_held)) {
            // A silent worker is lost with its session, which is checked before; here only whether it holds its rank.
            Some((None, _))
                if worker.is_some_and(|worker| worker.last_sign.plus(timeout / 2) <= self.now) =>
            {
                worker.map(|worker| worker.last_sign.plus(timeout + 1))
            }
            Some((None, last_held)) => Some(last_held.plus(timeout)),
            _ if ring.reforms() => None,
            Some((Some(lost), _)) => Some(lost.plus(self.away_for(ring.started)).max(ring.patience)),
            None => Some(ring.patience),
        }
    }

    /// How long a lost member of a ring that cannot re-form has to come back.
    pub(super) fn away_for(&self, started: bool) -> i64 {
        let options = &self.cluster.options;
        if started { options.session_timeout } else { options.session_timeout.min(options.preparing) }
    }
}
