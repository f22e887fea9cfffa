//! What ranks say, and what follows for their jobs.

use ringtune_shared::ids::{Epoch, JobId, WorkerId};

use super::Turn;
use crate::core::deadlines::Subject;
use crate::core::effect::{Down, Refusal, Write};
use crate::core::input::{Fault, HeldRank, RankReport, Sender};
use crate::core::job::{Broken, Job, JobState, Phase};
use crate::core::reason::Failure;
use crate::core::record::{EventBody, LogLevel, StepRecord};

impl Turn<'_> {
    /// A rank went on.
    pub(super) fn rank_report(&mut self, sender: Sender, report: RankReport) -> Result<(), Refusal> {
        self.heard(sender)?;
        let held = report.held;
        if !self.holds(sender.worker, &held) {
            self.release_unknown(sender.worker, &held);
            return Ok(());
        }
        if let Some(progress) = report.progress {
            let progress = crate::core::Progress { rank: held.rank, ..progress };
            self.effects.progress.push((held.job, progress));
        }
        self.observe(sender.worker, &held);
        Ok(())
    }

    /// Rank 0 did a step. One that is known already is answered but not stored again.
    pub(super) fn rank_step(
        &mut self,
        sender: Sender,
        id: JobId,
        epoch: Epoch,
        step: StepRecord,
    ) -> Result<(), Refusal> {
        self.heard(sender)?;
        let Some(job) = self.cluster.jobs.get(&id) else { return Ok(()) };
        let from_rank_0 = job.ring.as_ref().is_some_and(|ring| {
            ring.epoch == epoch && ring.members.first().is_some_and(|first| first.worker == sender.worker)
        });
        if !from_rank_0 || step.step > job.spec.total_steps() {
            return Ok(());
        }
        if step.step > job.step {
            if let Some(job) = self.progress_mut(id) {
                job.step = step.step;
                job.loss = Some(step.loss);
            }
            self.effects.writes.push(Write::AppendStep(id, step));
            self.record(id, EventBody::Step(step));
        }
        let stored = self.cluster.jobs.get(&id).map_or(step.step, |job| job.step);
        self.tell(sender.worker, Down::StepsStored(id, epoch, stored));
        self.advance(id);
        Ok(())
    }

    /// [`Job::check_epoch`] of a job that has not ended.
    pub(super) fn check_epoch(&self, id: JobId, given: Option<Epoch>) -> Result<(), Refusal> {
        self.cluster.jobs.get(&id).ok_or(Refusal::NotActive(id))?.check_epoch(given)
    }

    /// A rank has a line for its job's log.
    pub(super) fn rank_log(
        &mut self,
        sender: Sender,
        (id, epoch): (JobId, Epoch),
        level: LogLevel,
        message: &str,
    ) -> Result<(), Refusal> {
        self.heard(sender)?;
        let ring = self.cluster.jobs.get(&id).and_then(|job| job.ring.as_ref());
        let ring = ring.filter(|ring| ring.epoch == epoch);
        if let Some(rank) = ring.and_then(|ring| ring.rank_of(sender.worker)) {
            let message = self.cut(message);
            self.record(id, EventBody::Log { level, rank: u32::try_from(rank).ok(), message });
        }
        Ok(())
    }

    /// Whether the ring as it is now gave this rank to this worker.
    pub(super) fn holds(&self, worker: WorkerId, held: &HeldRank) -> bool {
        let ring = self.cluster.jobs.get(&held.job).and_then(|job| job.ring.as_ref());
        ring.is_some_and(|ring| {
            ring.epoch == held.epoch && ring.rank_of(worker) == usize::try_from(held.rank).ok()
        })
    }

    /// Lets go of a rank that no ring knows, unless its worker was told before.
    pub(super) fn release_unknown(&mut self, worker: WorkerId, held: &HeldRank) {
        let told =
            |known: &std::sync::Arc<crate::core::Worker>| known.releasing.contains(&(held.job, held.epoch));
        if !self.cluster.workers.get(&worker).is_some_and(told) {
            self.release(worker, held.job, held.epoch, "the coordinator has no such rank");
        }
    }

    /// Takes in a rank's phase as its worker tells it.
    pub(super) fn observe(&mut self, worker: WorkerId, held: &HeldRank) {
        self.mark_held(worker);
        let Some(job) = self.cluster.jobs.get(&held.job) else { return };
        let (state, cancelling) = (job.state, job.cancel.is_some());
        let Some(member) = job.ring.as_ref().and_then(|ring| ring.member(worker)) else { return };
        if held.phase <= member.phase || member.phase.is_terminal() {
            return;
        }
        let Some(member) = self.ring_mut(held.job).and_then(|ring| ring.member_mut(worker)) else { return };
        member.phase = held.phase;
        member.last_step = held.step;
        let host = member.host_name.clone();
        match held.phase {
            Phase::Failed | Phase::Stopped if !cancelling => {
                let stopped = if held.phase == Phase::Stopped { "stopped: " } else { "" };
                let reason = format!("rank {} on {host}: {stopped}{}", held.rank, held.reason);
                if held.neighbour_lost {
                    self.ring_broke(held, reason);
                } else if state == JobState::Preparing && held.fault == Fault::Node {
                    self.node_failed(held.job, worker, &reason);
                } else {
                    self.fail_job(held.job, Failure::Rank, &reason);
                }
            }
            Phase::Failed => {
                let message = self.cut(&format!("rank {} on {host}: {}", held.rank, held.reason));
                self.record(held.job, EventBody::note(LogLevel::Warn, message));
                self.advance(held.job);
            }
            _ => self.advance(held.job),
        }
    }

    /// A rank lost its neighbour. That one, or another rank, may say why a moment later: whichever report comes
    /// first, the cause is to be the job's reason, and otherwise what the lowest rank said.
    fn ring_broke(&mut self, held: &HeldRank, reason: String) {
        let fail_by = self.now.plus(self.cluster.options.root_cause);
        let note = self.cut(&reason);
        self.record(held.job, EventBody::note(LogLevel::Warn, note));
        self.cluster.deadlines.by(Subject::Job(held.job), fail_by);
        let Some(ring) = self.ring_mut(held.job) else { return };
        let broken = ring.broken.get_or_insert(Broken { fail_by, rank: held.rank, reason: reason.clone() });
        if held.rank < broken.rank {
            (broken.rank, broken.reason) = (held.rank, reason);
        }
        self.advance(held.job);
    }

    /// Fails a job whose ring broke once no rank can give a better reason any more, or its time to do so is over.
    /// Whether it did.
    pub(super) fn fail_broken(&mut self, id: JobId) -> bool {
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
        let (failure, reason) = match away {
            Some((rank, member)) => {
                let reason = format!("worker lost: rank {rank} on {}; {}", member.host_name, broken.reason);
                (Failure::WorkerLost, reason)
            }
            None => (Failure::NeighbourLost, broken.reason.clone()),
        };
        self.fail_job(id, failure, &reason);
        true
    }

    /// Moves a job on where its ranks' phases allow it.
    pub(super) fn advance(&mut self, id: JobId) {
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        let Some(ring) = job.ring.clone() else { return };
        if let Some(cancel) = &job.cancel {
            if ring.all(Phase::is_terminal) {
                let reason = cancel.reason.clone();
                self.end_job(id, JobState::Cancelled, &reason);
            }
            return;
        }
        if ring.broken.is_some() {
            self.fail_broken(id);
            return;
        }
        if job.state == JobState::Preparing && ring.all(|phase| phase >= Phase::Ready) {
            self.set_state(
                id,
                JobState::Running,
                format!("{} on {} rank(s)", job.spec.activity(), ring.members.len()),
            );
            for member in &ring.members {
                self.cluster.change_worker(member.worker, |worker| worker.failures = 0);
                self.tell(member.worker, Down::StartRank(id, ring.epoch));
            }
        }
        if ring.all(|phase| phase == Phase::Finished) {
            self.succeed(id);
        }
    }

    /// Ends a job whose ranks all finished, once its last step is stored.
    fn succeed(&mut self, id: JobId) {
        let finish_by = self.now.plus(self.cluster.options.finish);
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        if job.step >= last_step(job) {
            let reason = job.spec.success(job.step);
            self.end_job(id, JobState::Succeeded, &reason);
        } else if job.finish_by.is_none()
            && let Some(job) = self.job_mut(id)
        {
            job.finish_by = Some(finish_by);
            self.cluster.deadlines.by(Subject::Job(id), finish_by);
        }
    }
}

/// The step after which a job whose ranks all finished is over: the one that rank 0 stopped at, where a job may stop
/// early at all.
fn last_step(job: &Job) -> u64 {
    let planned = job.spec.total_steps();
    let may_stop_early = job.spec.may_stop_early();
    let stopped = job.ring.as_ref().and_then(|ring| ring.members.first()).map(|first| first.last_step);
    stopped.filter(|step| may_stop_early && *step > 0).map_or(planned, |step| step.min(planned))
}

#[cfg(test)]
mod tests;
