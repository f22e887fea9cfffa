//! Members of rings that are lost: finds out what happened, and does what [`decide`] says.

use ringtune_shared::ids::{JobId, WorkerId};

use super::Turn;
use crate::core::cluster::Cluster;
use crate::core::deadlines::Subject;
use crate::core::fault::{Cure, Rest};
use crate::core::job::{Broken, Phase};
use crate::core::job_state::JobState;
use crate::core::loss::{Loss, Situation, Verdict, decide};
use crate::core::record::{EventBody, LogLevel};
use crate::core::stop::Goal;

impl Turn<'_> {
    /// Something happened to a member of a job's ring. `reason`: what, with its rank and host.
    pub(super) fn lose(&mut self, id: JobId, worker: WorkerId, loss: Loss, reason: &str) {
        let Some(job) = self.cluster.jobs.get(&id).filter(|job| job.ring.is_some()) else { return };
        let (state, stopping) = (job.state, job.told_to_stop().is_some());
        let (rings, tries) = (job.tries, job.most_tries());
        let may_err = job.errors < u64::from(job.queue.error_retries);
        let reforms = job.ring.as_ref().is_some_and(|ring| ring.reforms());
        let resumes = job.checkpoint.is_some();
        // Refusals before this one were no tries, but rings.
        let refused = job.refusals;
        if loss.is_refusal() {
            self.note_refusal(id, worker, loss);
        }
        if state == JobState::Preparing && !stopping && loss.puts_others_first() {
            let (first, longest) = (self.cluster.options.rest, self.cluster.options.longest_rest);
            let owner = job_owner(self.cluster, id);
            self.cluster.owner_failed(&owner, self.now, first, longest);
        }
        let others = self.cluster.jobs.get(&id).is_some_and(|job| self.cluster.open_to(job).has_others());
        match decide(loss, Situation { state, stopping, reforms, rings, tries, may_err, others, resumes }) {
            Verdict::Wait if reforms && !stopping => self.away_from_ring(id, loss, reason),
            Verdict::Wait => self.wait(id, worker, loss, reason),
            Verdict::Assign => {
                self.mark_held(worker);
                self.assign(id, worker);
            }
            Verdict::Ended => self.rank_ended(id, worker, loss, reason),
            Verdict::Lost => {
                if let (Loss::RankFailed(_), Some(ring)) = (&loss, self.ring_mut(id)) {
                    ring.last_failure = Some(reason.to_owned());
                }
                // Who was restarted, or ends, is no worse for it. Who was evicted is let in by a person.
                if !matches!(loss, Loss::Restarted | Loss::Evicted | Loss::RankStopped(_)) {
                    self.blame(id, worker, loss);
                }
                let holds = !matches!(loss, Loss::Restarted | Loss::BackWithout { .. });
                self.member_lost(id, worker, holds, reason);
            }
            Verdict::Queue => {
                self.blame(id, worker, loss);
                let again = self.where_again(id);
                self.reach(id, &Goal::queued(format!("{reason}; {again}")));
            }
            Verdict::Elsewhere => {
                if let Some(job) = self.job_mut(id) {
                    job.tries = job.tries.saturating_sub(1);
                }
                self.reach(id, &Goal::queued(format!("{reason}; trying again elsewhere")));
            }
            Verdict::AfterError => {
                let Some(job) = self.job_mut(id) else { return };
                job.errors += 1;
                let (errors, most) = (job.errors, job.queue.error_retries);
                let from = self.start_of_next_ring(id);
                let reason = format!("{reason}; trying again from {from} (error {errors} of {most})");
                self.reach(id, &Goal::queued(reason));
            }
            Verdict::OlderCheckpoint => self.take_older_checkpoint(id, reason),
            Verdict::GiveUp(failure) => {
                self.blame(id, worker, loss);
                let rings = if loss.is_refusal() { rings + refused } else { rings };
                let tried = if rings > 1 { format!(" (tried {rings} times)") } else { String::new() };
                self.reach(id, &Goal::Failed { failure, reason: format!("{reason}{tried}") });
            }
            Verdict::Fail(failure) => self.reach(id, &Goal::Failed { failure, reason: reason.to_owned() }),
        }
    }

    /// The newest checkpoint of a job is gone or damaged: it is taken off the job, so that a restart does not find it
    /// either, and the job goes on from the one before it.
    fn take_older_checkpoint(&mut self, id: JobId, reason: &str) {
        let Some(job) = self.job_mut(id) else { return };
        // It is nobody's failure.
        job.tries = job.tries.saturating_sub(1);
        let Some(damaged) = job.checkpoint else { return };
        self.note_loss(
            id,
            &format!("the checkpoint of step {} is damaged and not used any more: {reason}", damaged.step),
        );
        if let Err(refusal) = self.drop_artifact(id, damaged.name()) {
            self.note_loss(id, &refusal.to_string());
        }
        let from = self.start_of_next_ring(id);
        let reason = format!("the checkpoint of step {} is damaged; going on from {from}", damaged.step);
        self.reach(id, &Goal::queued(reason));
    }

    /// Where a ring that comes out of the queue begins, in words.
    pub(super) fn start_of_next_ring(&self, id: JobId) -> String {
        let checkpoint = self.cluster.jobs.get(&id).and_then(|job| job.checkpoint);
        checkpoint
            .map_or_else(|| "its beginning".to_owned(), |checkpoint| format!("step {}", checkpoint.step))
    }

    /// A member of a ring that runs is not connected: the ring needs it, but not its session.
    fn away_from_ring(&mut self, id: JobId, loss: Loss, reason: &str) {
        if loss == Loss::Away {
            self.note_loss(id, &format!("{reason}; its ring goes on if it can"));
        }
        self.look_at_ring(id);
    }

    /// What is logged of a loss that decides nothing yet, and the deadline until which it decides nothing.
    fn wait(&mut self, id: JobId, worker: WorkerId, loss: Loss, reason: &str) {
        let ring = self.cluster.jobs.get(&id).and_then(|job| job.ring.as_ref());
        let started = ring.is_some_and(|ring| ring.started);
        let milliseconds = match loss {
            Loss::Away => self.away_for(started),
            Loss::NeighbourLost => self.cluster.options.root_cause,
            // Their deadlines are over; the job has another one.
            _ => return,
        };
        let deadline = self.now.plus(milliseconds);
        self.cluster.deadlines.by(Subject::Job(id), deadline);
        let note = match loss {
            Loss::Away => format!("{reason}; waiting {} for it", in_seconds(milliseconds)),
            _ => reason.to_owned(),
        };
        let note = self.cut(&note);
        self.record(id, EventBody::note(LogLevel::Warn, note));
        if loss == Loss::NeighbourLost {
            self.ring_broke(id, worker, deadline, reason);
        }
    }

    /// A rank lost its neighbour. That one, or another rank, may say why a moment later: whichever report comes
    /// first, the cause is to be the job's reason, and otherwise what the lowest rank said.
    fn ring_broke(&mut self, id: JobId, worker: WorkerId, fail_by: crate::core::Time, reason: &str) {
        let Some(ring) = self.ring_mut(id) else { return };
        let Some(rank) = ring.rank_of(worker).and_then(|rank| u32::try_from(rank).ok()) else { return };
        let broken = ring.broken.get_or_insert_with(|| Broken { fail_by, rank, reason: reason.to_owned() });
        if rank < broken.rank {
            (broken.rank, broken.reason) = (rank, reason.to_owned());
        }
        self.advance(id);
    }

    /// Looks whether no rank of a broken ring can give a better reason any more, or its time to do so is over: then the
    /// loss stays unexplained. Whether it is so.
    pub(super) fn look_at_broken(&mut self, id: JobId) -> bool {
        let Some(ring) = self.cluster.jobs.get(&id).and_then(|job| job.ring.as_ref()) else { return false };
        let Some(broken) = &ring.broken else { return false };
        if self.now < broken.fail_by && !ring.all(Phase::is_terminal) {
            return false;
        }
        // A worker that is away with its rank is what the others lost.
        let away = ring.members.iter().enumerate().find(|(_, member)| {
            let worker = self.cluster.workers.get(&member.worker);
            !member.phase.is_terminal() && worker.is_none_or(|worker| worker.session.is_none())
        });
        let (worker, reason) = match away {
            Some((rank, member)) => {
                let reason = format!("worker lost: rank {rank} on {}; {}", member.host_name, broken.reason);
                (Some(member.worker), reason)
            }
            None => {
                (ring.members.get(broken.rank as usize).map(|member| member.worker), broken.reason.clone())
            }
        };
        let Some(worker) = worker else { return false };
        let loss = Loss::Unexplained { away: away.is_some() };
        self.lose(id, worker, loss, &reason);
        true
    }

    /// A rank of a job that is ending anyway is gone.
    fn rank_ended(&mut self, id: JobId, worker: WorkerId, loss: Loss, reason: &str) {
        if matches!(loss, Loss::RankFailed(_) | Loss::NeighbourLost) {
            let note = self.cut(reason);
            self.record(id, EventBody::note(LogLevel::Warn, note));
        }
        let member = self.ring_mut(id).and_then(|ring| ring.member_mut(worker));
        if let Some(member) = member.filter(|member| !member.phase.is_terminal()) {
            member.phase = Phase::Stopped;
        }
        self.advance(id);
    }

    /// A worker that keeps failing is asked less and less often, but never given up.
    pub(super) fn let_rest(&mut self, worker: WorkerId) {
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

    /// A rank failed on a worker: for whom the worker rests now. While only one owner's jobs fail, it rests for that owner
    /// alone.
    pub(super) fn blame(&mut self, id: JobId, worker: WorkerId, loss: Loss) {
        let rest = loss.rest();
        if rest == Rest::None {
            return;
        }
        let owner = job_owner(self.cluster, id);
        let rests = (self.cluster.options.rest, self.cluster.options.longest_rest);
        let now = self.now;
        let answer = self.cluster.change_worker(worker, |worker| {
            let may_be_its_own = rest == Rest::ForOwners;
            let several = may_be_its_own && worker.suspected_by.as_ref().is_some_and(|other| *other != owner);
            if may_be_its_own {
                worker.suspected_by = Some(owner.clone());
            }
            (worker.doubt(owner, now, rests), several)
        });
        let Some((until, several)) = answer else { return };
        self.cluster.deadlines.by(Subject::Worker(worker), until);
        if several {
            self.let_rest(worker);
        }
    }

    /// A worker prepared a rank: whatever failed on it before was not its fault, or is over.
    pub(super) fn works_well(&mut self, worker: WorkerId) {
        self.cluster.change_worker(worker, |worker| {
            (worker.failures, worker.doubts, worker.suspected_by) = (0, Vec::new(), None);
        });
    }

    /// Where a job is tried again that goes back to the queue, in words.
    fn where_again(&self, id: JobId) -> &'static str {
        let Some(job) = self.cluster.jobs.get(&id) else { return "trying again" };
        let (_, needed) = job.ranks();
        match self.cluster.open_to(job).usable(job) >= needed as usize {
            true => "trying again elsewhere",
            false => "trying again when a worker has rested",
        }
    }

    /// The worker, or its whole machine, cannot serve the job: the job is for others.
    pub(super) fn note_refusal(&mut self, id: JobId, worker: WorkerId, loss: Loss) {
        let of_machine = loss.fault().follows().cure == Cure::OtherMachines;
        let beside = self.cluster.workers.get(&worker).filter(|_| of_machine).into_iter().flat_map(|one| {
            self.cluster.workers.values().filter(|other| one.is_beside(other)).map(|other| other.id)
        });
        let refusing: Vec<WorkerId> = beside.chain([worker]).collect();
        if let Some(job) = self.job_mut(id) {
            job.refusals = job.refusals.saturating_add(1);
            job.refused_by.extend(refusing);
        }
    }

    /// The first rank whose worker is gone for too long, or does not hold it: what happened, and in words.
    pub(super) fn overdue_rank(&self, id: JobId) -> Option<(WorkerId, Loss, String)> {
        let job = self.cluster.jobs.get(&id)?;
        let ring = job.ring.as_ref()?;
        let overdue = |member: &crate::core::Member| {
            self.member_deadline(ring, member).is_some_and(|deadline| deadline <= self.now)
        };
        let (rank, member) = ring.present().find(|(_, member)| overdue(member))?;
        let host = &member.host_name;
        let (loss, reason) = match self.cluster.workers.get(&member.worker).map(|worker| worker.lost) {
            None => (
                Loss::Overdue,
                format!(
                    "worker lost: rank {rank} on {host} (worker {}) did not come back within {} s after the \
                     coordinator's restart",
                    member.worker,
                    self.cluster.options.recovery / 1000
                ),
            ),
            Some(Some(_)) => (
                Loss::Overdue,
                format!(
                    "worker lost: rank {rank} on {host} did not come back within {}",
                    in_seconds(self.away_for(ring.started))
                ),
            ),
            Some(None) => {
                let how = if member.phase == Phase::Assigned { "never took" } else { "dropped" };
                let text = format!(
                    "rank {rank} on {host}: the worker does not hold it ({how} the rank of job {id})"
                );
                (Loss::NotHeld, text)
            }
        };
        Some((member.worker, loss, reason))
    }
}

fn job_owner(cluster: &Cluster, id: JobId) -> String {
    cluster.jobs.get(&id).map(|job| job.queue.owner.clone()).unwrap_or_default()
}

fn in_seconds(milliseconds: i64) -> String {
    format!("{} s", milliseconds as f64 / 1000.0)
}

#[cfg(test)]
mod tests;
