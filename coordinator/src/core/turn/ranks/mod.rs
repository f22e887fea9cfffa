//! What ranks say, and what follows for their jobs.

use std::sync::Arc;

use ringtune_shared::ids::{Epoch, JobId, WorkerId};

use super::Turn;
use crate::core::deadlines::Subject;
use crate::core::effect::{Down, OtherEpoch, Write};
use crate::core::input::{HeldRank, RankReport};
use crate::core::job::{Job, Phase, Ring};
use crate::core::job_state::JobState;
use crate::core::loss::Loss;
use crate::core::record::{EventBody, LogLevel, StepRecord};
use crate::core::refusal::Refusal;
use crate::core::session::Sender;
use crate::core::stop::{Goal, Stop};

impl Turn<'_> {
    /// A rank went on.
    pub(super) fn rank_report(&mut self, sender: Sender, report: RankReport) -> Result<(), Refusal> {
        self.heard(sender)?;
        let held = report.held;
        self.is_of_ring(held.job, held.epoch, OtherEpoch::Report);
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
        if !self.is_of_ring(id, epoch, OtherEpoch::Step) {
            return Ok(());
        }
        let Some(job) = self.cluster.jobs.get(&id) else { return Ok(()) };
        let first = job.ring.as_ref().and_then(|ring| ring.members.first());
        let from_rank_0 = first.is_some_and(|first| first.worker == sender.worker);
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

    /// A rank has a line for its job's log.
    pub(super) fn rank_log(
        &mut self,
        sender: Sender,
        (id, epoch): (JobId, Epoch),
        level: LogLevel,
        message: &str,
    ) -> Result<(), Refusal> {
        self.heard(sender)?;
        if !self.is_of_ring(id, epoch, OtherEpoch::Log) {
            return Ok(());
        }
        let ring = self.cluster.jobs.get(&id).and_then(|job| job.ring.as_ref());
        if let Some(rank) = ring.and_then(|ring| ring.rank_of(sender.worker)) {
            let message = self.cut(message);
            self.record(id, EventBody::Log { level, rank: u32::try_from(rank).ok(), message });
        }
        Ok(())
    }

    /// Whether a job has a ring of this epoch now. Where a job that has not ended has none, it is noted that `what` comes
    /// from another one.
    fn is_of_ring(&mut self, id: JobId, epoch: Epoch, what: OtherEpoch) -> bool {
        let Some(job) = self.cluster.jobs.get(&id) else { return false };
        let same = job.check_epoch(Some(epoch)).is_ok();
        if !same {
            self.effects.other_epoch = Some(what);
        }
        same
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
        let told = |known: &Arc<crate::core::Worker>| known.releasing.contains(&(held.job, held.epoch));
        if !self.cluster.workers.get(&worker).is_some_and(told) {
            self.release(worker, held.job, held.epoch, "the coordinator has no such rank");
        }
    }

    /// Takes in a rank's phase as its worker tells it. That of another epoch counts for nothing.
    pub(super) fn observe(&mut self, worker: WorkerId, held: &HeldRank) {
        self.mark_held(worker);
        let ring = self.cluster.jobs.get(&held.job).and_then(|job| job.ring.as_ref());
        let Some(ring) = ring.filter(|ring| ring.epoch == held.epoch) else { return };
        let Some(member) = ring.member(worker) else { return };
        if held.phase <= member.phase || member.phase.is_terminal() {
            return;
        }
        let Some(member) = self.ring_mut(held.job).and_then(|ring| ring.member_mut(worker)) else { return };
        member.phase = held.phase;
        member.last_step = held.step;
        let (rank, host) = (held.rank, member.host_name.clone());
        match held.phase {
            Phase::Failed => {
                let loss =
                    if held.neighbour_lost { Loss::NeighbourLost } else { Loss::RankFailed(held.fault) };
                self.lose(held.job, worker, loss, &format!("rank {rank} on {host}: {}", held.reason));
            }
            Phase::Stopped => {
                let reason = format!("rank {rank} on {host}: stopped: {}", held.reason);
                self.lose(held.job, worker, Loss::RankStopped(held.fault), &reason);
            }
            _ => self.advance(held.job),
        }
    }

    /// Moves a job on where its ranks' phases allow it.
    pub(super) fn advance(&mut self, id: JobId) {
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        let Some(ring) = job.ring.clone() else { return };
        if let Some(stop) = job.told_to_stop() {
            if ring.all(Phase::is_terminal) {
                let goal = stop.goal.clone();
                self.reach(id, &goal);
            }
            return;
        }
        if ring.broken.is_some() {
            self.look_at_broken(id);
            return;
        }
        if !ring.started && ring.all(|phase| phase >= Phase::Ready) {
            self.start_ring(id, &ring);
        }
        if ring.all(|phase| phase == Phase::Finished) {
            self.succeed(id);
        }
    }

    /// All ranks of this epoch of a job's ring are ready.
    fn start_ring(&mut self, id: JobId, ring: &Ring) {
        let Some(job) = self.job_mut(id) else { return };
        if let Some(ring) = job.ring.as_mut().map(Arc::make_mut) {
            ring.started = true;
        }
        let reason = format!("{} on {} rank(s)", job.spec.activity(), ring.members.len());
        self.set_state(id, JobState::Running, reason);
        for member in &ring.members {
            self.cluster.change_worker(member.worker, |worker| worker.failures = 0);
            self.tell(member.worker, Down::StartRank(id, ring.epoch));
        }
    }

    /// Ends a job whose ranks all finished, once its last step is stored.
    fn succeed(&mut self, id: JobId) {
        let deadline = self.now.plus(self.cluster.options.finish);
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        if job.step >= last_step(job) {
            let reason = job.spec.success(job.step);
            self.end_job(id, JobState::Succeeded, &reason);
        } else if job.stop.is_none()
            && let Some(job) = self.job_mut(id)
        {
            job.stop = Some(Stop { goal: Goal::Succeeded, deadline });
            self.cluster.deadlines.by(Subject::Job(id), deadline);
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
