//! What ranks say, and what follows for their jobs.

use std::sync::Arc;

use ringtune_shared::ids::{Epoch, JobId, WorkerId};
use ringtune_shared::ring::block_of;

use super::Turn;
use crate::core::deadlines::Subject;
use crate::core::effect::{Down, OtherEpoch, Write};
use crate::core::failure::Failure;
use crate::core::input::{HeldRank, RankReport};
use crate::core::job::{Job, Pause, Phase, Ring};
use crate::core::job_state::JobState;
use crate::core::loss::Loss;
use crate::core::record::{EventBody, LogLevel, StepRecord};
use crate::core::refusal::Refusal;
use crate::core::session::Sender;
use crate::core::stop::{Goal, Stop};
use crate::core::timing::RankTiming;

/// How a worker may hold what its job's ring gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Its rank in the ring as it is now.
    Seat,
    /// Its rank by an older epoch of the same ring, or its place among the joiners: it has not entered the newest one yet.
    Older,
    /// Its place among the joiners.
    Joins,
}

impl Turn<'_> {
    /// A rank went on.
    pub(super) fn rank_report(&mut self, sender: Sender, report: RankReport) -> Result<(), Refusal> {
        self.heard(sender)?;
        let held = report.held;
        let Some(hold) = self.hold_of(sender.worker, &held) else {
            self.is_of_ring(held.job, held.epoch, OtherEpoch::Report);
            self.release_unknown(sender.worker, &held);
            return Ok(());
        };
        if let (Some(progress), Some(rank), Hold::Seat) = (report.progress, held.rank, hold) {
            self.effects.progress.push((held.job, crate::core::Progress { rank, ..progress }));
        }
        self.observe(sender.worker, &held, hold);
        Ok(())
    }

    /// Rank 0 did a step, or another member that ends with what it has knows of one. One that is known already is answered
    /// but not stored again: it must have come to the same state.
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
        let may_tell = |ring: &Arc<Ring>| match ring.rank_of(sender.worker) {
            Some(rank) => rank == 0 || ring.reforms(),
            None => false,
        };
        if !job.ring.as_ref().is_some_and(may_tell) || step.step > job.total_steps() {
            return Ok(());
        }
        let is_new = step.step > job.step;
        if is_new {
            self.settle_by_step(id, step.step, step.epoch);
            self.keep_step(id, step);
            self.pace(id, step.step);
        } else if let Some(reason) = self.diverged(id, &step) {
            self.reach(id, &Goal::Failed { failure: Failure::Diverged, reason });
            return Ok(());
        }
        // Up to this one: a ring that goes on from a checkpoint does again what is stored, and is to say so.
        self.tell(sender.worker, Down::StepsStored(id, epoch, step.step));
        // A repeated step is no progress: a job that dies each time before its next checkpoint would go on for ever.
        if is_new {
            self.went_on(id, step.epoch);
        }
        if self.ring(id).is_some_and(|ring| ring.epoch == step.epoch) {
            self.ring_is_whole(id);
        }
        self.advance(id);
        Ok(())
    }

    /// A job did a new step: the counters of fruitless tries begin anew.
    fn went_on(&mut self, id: JobId, epoch: Epoch) {
        if self.cluster.jobs.get(&id).is_some_and(|job| job.tries > 0)
            && let Some(job) = self.job_mut(id)
        {
            job.tries = 0;
        }
        if self.ring(id).is_some_and(|ring| ring.epoch == epoch && ring.fruitless > 0) {
            self.change_ring(id, |ring| ring.fruitless = 0);
        }
    }

    /// A ring's first new step was stored: from here on it is known how fast it is.
    fn pace(&mut self, id: JobId, step: u64) {
        let now = self.now;
        if let Some(ring) = self.ring_mut(id) {
            ring.paced.get_or_insert((now, step));
        }
    }

    fn keep_step(&mut self, id: JobId, step: StepRecord) {
        if let Some(job) = self.progress_mut(id) {
            job.step = step.step;
            job.loss = Some(step.loss);
            job.validation = step.validation(job.validation, job.spec.keeps_best());
        }
        self.look_at_rung(id, &step);
        if let Some(state) = step.state {
            self.cluster.put_hash(id, step.step, state);
        }
        self.effects.writes.push(Write::AppendStep(id, step));
        self.record(id, EventBody::Step(step));
    }

    /// Whether a step that is done again came to another state, in words. Where the ring decides bits and may be another one
    /// than before, it may.
    fn diverged(&self, id: JobId, step: &StepRecord) -> Option<String> {
        let spec = &self.cluster.jobs.get(&id)?.spec;
        if spec.ring_decides() && spec.ring_may_shrink() {
            return None;
        }
        let (now, before) = (step.state?, self.cluster.hash_of(id, step.step)?);
        let text = || {
            format!(
                "step {} was done again in epoch {} and came to another state: {now}, and {before} before",
                step.step, step.epoch
            )
        };
        (now != before).then(text)
    }

    /// A rank says what its steps take. Only a member's word of itself counts.
    pub(super) fn rank_timings(
        &mut self,
        sender: Sender,
        id: JobId,
        timing: RankTiming,
    ) -> Result<(), Refusal> {
        self.heard(sender)?;
        if !self.is_of_ring(id, timing.epoch, OtherEpoch::Timings) {
            return Ok(());
        }
        let Some(job) = self.cluster.jobs.get(&id) else { return Ok(()) };
        let Some(ring) = job.ring.as_ref() else { return Ok(()) };
        let Some(rank) = ring.rank_of(sender.worker).filter(|rank| u32::try_from(*rank) == Ok(timing.rank))
        else {
            return Ok(());
        };
        let (members, all) = (ring.members.len(), job.spec.global_microbatches() as usize);
        let own = u32::try_from(block_of(rank, members, all).len()).unwrap_or(u32::MAX);
        self.effects.timings.push((id, members, RankTiming { microbatches: own.max(1), ..timing }));
        Ok(())
    }

    /// A rank has a line for its job's log.
    pub(super) fn rank_log(
        &mut self,
        sender: Sender,
        id: JobId,
        epoch: Epoch,
        level: LogLevel,
        message: &str,
    ) -> Result<(), Refusal> {
        self.heard(sender)?;
        let Some(ring) = self.ring(id) else { return Ok(()) };
        if !(ring.first_epoch()..=ring.epoch).contains(&epoch) {
            self.effects.other_epoch = Some(OtherEpoch::Log);
            return Ok(());
        }
        let message = self.cut(message);
        if let Some(rank) = ring.rank_of(sender.worker) {
            self.record(id, EventBody::Log { level, rank: u32::try_from(rank).ok(), message });
        } else if let Some(joiner) = ring.joiner(sender.worker) {
            let message = format!("{}, which prepares to join: {message}", joiner.member.host_name);
            self.record(id, EventBody::note(level, message));
        }
        Ok(())
    }

    /// Whether a job has a ring of this epoch now. Where a job that has not ended has none, it is noted that `what` comes
    /// from another one.
    pub(super) fn is_of_ring(&mut self, id: JobId, epoch: Epoch, what: OtherEpoch) -> bool {
        let Some(job) = self.cluster.jobs.get(&id) else { return false };
        let same = job.check_epoch(Some(epoch)).is_ok();
        if !same {
            self.effects.other_epoch = Some(what);
        }
        same
    }

    /// How a worker holds what it says it does; none: no ring gave it that.
    pub(super) fn hold_of(&self, worker: WorkerId, held: &HeldRank) -> Option<Hold> {
        let ring = self.cluster.jobs.get(&held.job)?.ring.as_ref()?;
        if let Some(joiner) = ring.joiner(worker) {
            return (joiner.epoch == held.epoch && held.rank.is_none()).then_some(Hold::Joins);
        }
        let rank = ring.rank_of(worker)?;
        if ring.epoch == held.epoch {
            return (held.rank == u32::try_from(rank).ok()).then_some(Hold::Seat);
        }
        let known = self.cluster.workers.get(&worker).map(|worker| worker.incarnation);
        let same_start = known.is_some() && known == ring.member(worker).map(|member| member.incarnation);
        (same_start && (ring.first_epoch()..ring.epoch).contains(&held.epoch)).then_some(Hold::Older)
    }

    /// Lets go of a rank that no ring knows, unless its worker was told before.
    pub(super) fn release_unknown(&mut self, worker: WorkerId, held: &HeldRank) {
        let told = |known: &Arc<crate::core::Worker>| known.releasing.contains(&(held.job, held.epoch));
        if !self.cluster.workers.get(&worker).is_some_and(told) {
            self.release(worker, held.job, held.epoch, "the coordinator has no such rank");
        }
    }

    /// Takes in what a worker says of its place.
    pub(super) fn observe(&mut self, worker: WorkerId, held: &HeldRank, hold: Hold) {
        self.mark_held(worker);
        if held.leaving && self.cluster.workers.get(&worker).is_some_and(|worker| !worker.leaving) {
            self.cluster.change_worker(worker, |worker| worker.leaving = true);
            self.look_at_joiners(held.job);
            self.look_at_ring(held.job);
        }
        match hold {
            Hold::Seat => self.observe_rank(worker, held),
            Hold::Joins => self.observe_joiner(worker, held),
            Hold::Older => self.observe_older(worker, held),
        }
    }

    /// A rank's phase in the ring as it is now.
    fn observe_rank(&mut self, worker: WorkerId, held: &HeldRank) {
        let now = self.now;
        let known = self.cluster.jobs.get(&held.job).and_then(|job| job.ring.as_ref()?.member(worker));
        if known.is_none_or(|member| !held.phase.follows(member.phase)) {
            return;
        }
        let stored = self.cluster.jobs.get(&held.job).map_or(0, |job| job.step);
        let Some(ring) = self.ring_mut(held.job).filter(|ring| ring.epoch == held.epoch) else { return };
        let Some(member) = ring.member_mut(worker).filter(|member| held.phase.follows(member.phase)) else {
            return;
        };
        member.phase = held.phase;
        member.last_step = held.step;
        // Whoever works has got the state; so has one that waits, unless it is more than the one step behind by which ranks
        // may differ.
        let has_state = matches!(held.phase, Phase::Training | Phase::Done | Phase::Finished)
            || (held.phase == Phase::Waiting && held.step + 1 >= stored);
        let arrives = member.newcomer && has_state;
        if arrives {
            member.newcomer = false;
        }
        if held.phase == Phase::Waiting {
            member.pause = Some(Pause { since: now, trouble: held.trouble.clone() });
        }
        let reforms = ring.reforms();
        if arrives {
            // So that a restart knows it too.
            self.change_ring(held.job, |_| ());
        }
        match held.phase {
            Phase::Failed | Phase::Stopped => self.rank_is_over(worker, held),
            // A member cannot re-form, so the ring cannot.
            Phase::Waiting if !reforms => self.rank_is_over(worker, held),
            _ => self.advance(held.job),
        }
    }

    /// A member that has not entered the newest ring yet says how it is in the one before. Only its end counts there, and
    /// that of the job's files.
    fn observe_older(&mut self, worker: WorkerId, held: &HeldRank) {
        match held.phase {
            // It may not have heard of the newest one.
            Phase::Waiting => {
                self.tell_to_enter(held.job, worker, false, "the ring has other members by now")
            }
            Phase::Failed | Phase::Stopped | Phase::Finished => {
                let Some(ring) = self.ring_mut(held.job) else { return };
                let is_head = ring.rank_of(worker) == Some(0);
                let Some(member) = ring.member_mut(worker) else { return };
                if member.phase.is_terminal() {
                    return;
                }
                if held.phase != Phase::Finished {
                    member.phase = held.phase;
                    self.rank_is_over(worker, held);
                } else if is_head {
                    (member.phase, member.last_step) = (Phase::Finished, held.step);
                    self.advance(held.job);
                }
            }
            _ => {}
        }
    }

    /// A rank failed or stopped.
    fn rank_is_over(&mut self, worker: WorkerId, held: &HeldRank) {
        let Some((rank, host)) = self.ring(held.job).and_then(|ring| {
            let rank = ring.rank_of(worker)?;
            Some((rank, ring.member(worker)?.host_name.clone()))
        }) else {
            return;
        };
        let (loss, reason) = match held.phase {
            Phase::Stopped => {
                (Loss::RankStopped(held.fault), format!("rank {rank} on {host}: stopped: {}", held.reason))
            }
            Phase::Waiting => {
                let text = held.trouble.as_ref().map_or("its ring broke", |trouble| trouble.text.as_str());
                (Loss::NeighbourLost, format!("rank {rank} on {host}: {text}"))
            }
            _ if held.neighbour_lost => {
                (Loss::NeighbourLost, format!("rank {rank} on {host}: {}", held.reason))
            }
            _ => (Loss::RankFailed(held.fault), format!("rank {rank} on {host}: {}", held.reason)),
        };
        self.lose(held.job, worker, loss, &reason);
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
        if self.ring(id).is_some_and(|ring| ring.reforms()) {
            self.look_whether_whole(id);
            self.look_at_ring(id);
            return;
        }
        // Release 0.2.0 says of every rank that it finished.
        let sent = ring.members.first().is_some_and(|first| first.phase == Phase::Finished);
        if sent && ring.all(|phase| matches!(phase, Phase::Done | Phase::Finished)) {
            self.succeed(id);
        }
    }

    /// All ranks of this epoch of a job's ring are ready.
    fn start_ring(&mut self, id: JobId, ring: &Ring) {
        self.change_ring(id, |ring| ring.started = true);
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        let reason = format!("{} on {} rank(s)", job.activity(), ring.members.len());
        let (owner, model) = (job.queue.clone(), job.model());
        self.set_state(id, JobState::Running, reason);
        self.cluster.owner_prepared(&owner.owner);
        for member in &ring.members {
            self.works_well(member.worker);
            self.cluster.loaded(member.worker, model.clone());
            self.tell(member.worker, Down::StartRank(id, ring.epoch));
        }
    }

    /// Ends a job whose ranks all finished, once its last step is stored.
    pub(super) fn succeed(&mut self, id: JobId) {
        let deadline = self.now.plus(self.cluster.options.finish);
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        if job.step >= last_step(job) {
            let reason = job.success();
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
    let planned = job.total_steps();
    let may_stop_early = job.verification.is_none() && job.spec.may_stop_early();
    let stopped = job.ring.as_ref().and_then(|ring| ring.members.first()).map(|first| first.last_step);
    stopped.filter(|step| may_stop_early && *step > 0).map_or(planned, |step| step.min(planned))
}

#[cfg(test)]
mod tests;
