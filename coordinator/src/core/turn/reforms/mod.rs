//! Rings that change while they run: carries out what [`decide`] says.

mod events;
mod view;

use std::sync::Arc;

use ringtune_shared::ids::{Epoch, JobId, WorkerId};

use super::Turn;
use crate::core::deadlines::Subject;
use crate::core::effect::{Down, EnterRing};
use crate::core::failure::Failure;
use crate::core::job::{BrokenLink, Member, Phase, Reforming, Ring};
use crate::core::reform::{Decision, Plan, Why, decide};
use crate::core::stop::Goal;
use crate::core::time::Time;

pub(super) use view::is_worth_a_member;

impl Turn<'_> {
    /// Re-examines the membership of a job's ring after a change, if the ring runs and can re-form.
    pub(super) fn look_at_ring(&mut self, id: JobId) {
        self.ask_about_joiners(id);
        let Some(view) = self.view(id) else { return };
        match decide(&view) {
            Decision::Nothing(until) => self.look_again(id, until),
            Decision::End => self.succeed(id),
            Decision::Look => {
                self.ask_members(id);
                self.look_at_ring(id);
            }
            Decision::Reform(plan) => self.reform(id, &plan),
            Decision::WaitForSpare { lost, leave, apart, until } => {
                let ring = self.ring(id);
                self.part_with(id, &lost, &[leave, apart.clone()].concat());
                self.wait_for_spare(id);
                if let Some(ring) = ring {
                    self.leave_out(id, &ring, &apart);
                }
                self.look_again(id, Some(until));
            }
            Decision::Queue { why, lost, survivors } => {
                self.part_with(id, &lost, &[]);
                self.give_ring_up(id, why, survivors);
            }
            Decision::LetGo(ranks) => self.part_with(id, &[], &ranks),
        }
    }

    fn look_again(&mut self, id: JobId, until: Option<Time>) {
        if let Some(until) = until {
            self.cluster.deadlines.by(Subject::Job(id), until);
        }
    }

    /// The next deadline of the ring, should no input come before.
    pub(super) fn reform_deadline(&self, id: JobId) -> Option<Time> {
        match decide(&self.view(id)?) {
            Decision::Nothing(until) => until,
            Decision::WaitForSpare { until, .. } => Some(until),
            _ => Some(self.now),
        }
    }

    /// Takes a member that is certainly lost out of a ring that can re-form. `holds`: its worker may still hold the rank.
    pub(super) fn member_lost(&mut self, id: JobId, worker: WorkerId, holds: bool, reason: &str) {
        self.note_loss(id, reason);
        self.make_gone(id, &[worker], holds);
        self.look_at_ring(id);
    }

    /// Members lose their places, and are told so if they may hold them.
    fn make_gone(&mut self, id: JobId, workers: &[WorkerId], hold: bool) {
        let Some(epoch) = self.ring(id).map(|ring| ring.epoch) else { return };
        self.change_ring(id, |ring| {
            for worker in workers {
                if let Some(member) = ring.member_mut(*worker) {
                    member.gone = true;
                }
            }
        });
        for worker in workers.iter().filter(|_| hold) {
            self.release(*worker, id, epoch, "the ring goes on without this rank");
        }
    }

    /// The ring waits where it is, but not for these.
    fn part_with(&mut self, id: JobId, lost: &[usize], leave: &[usize]) {
        if lost.is_empty() && leave.is_empty() {
            return;
        }
        self.note_lost(id, lost);
        let Some(ring) = self.ring(id) else { return };
        let workers = lost.iter().chain(leave).filter_map(|rank| ring.members.get(*rank));
        let workers: Vec<WorkerId> = workers.map(|member| member.worker).collect();
        self.make_gone(id, &workers, true);
    }

    /// Too few members are left.
    fn wait_for_spare(&mut self, id: JobId) {
        let Some(ring) = self.ring(id) else { return };
        if ring.reforming.as_ref().is_some_and(|reforming| reforming.spare_by.is_some()) {
            return;
        }
        let (now, spare) = (self.now, self.cluster.options.spare);
        let since = broke_at(&ring).unwrap_or(now);
        let left = ring.present().count();
        self.change_ring(id, |ring| {
            let spare_by = Some(now.plus(spare));
            ring.reforming = Some(Reforming { since, planned: false, spare_by });
        });
        let Some(job) = self.job_mut(id) else { return };
        let (_, needed) = job.ranks();
        let reason = format!("{left} rank(s) left, {needed} needed: waiting for another worker");
        job.reason.clone_from(&reason);
        self.note_wait(id, &format!("{reason}, for {} s", spare / 1000));
    }

    fn give_ring_up(&mut self, id: JobId, why: Why, survivors: bool) {
        match why {
            Why::AllLost => self.leave_ring(id, "all its workers are lost", survivors),
            Why::StateLost => self.leave_ring(id, "all workers that had its state are lost", survivors),
            Why::NoSpare => {
                // A link that does not work is the network's failure: it counts as no try.
                if let Some(job) = self.job_mut(id).filter(|job| !job.links.apart.is_empty()) {
                    job.tries = job.tries.saturating_sub(1);
                }
                self.leave_ring(id, "no other worker came in time", survivors);
            }
            Why::Leaving => {
                // That is nobody's failure: it counts as no try.
                if let Some(job) = self.job_mut(id) {
                    job.tries = job.tries.saturating_sub(1);
                }
                let members = self.ring(id).into_iter().flat_map(|ring| ring.members.clone());
                let mut takers =
                    members.into_iter().filter_map(|member| self.taker(member.yields_to).cloned());
                if let Some(why) =
                    self.cluster.jobs.get(&id).filter(|job| job.pauses()).map(|job| job.why_it_pauses())
                {
                    self.stop_job(id, Goal::queued(why));
                    return;
                }
                let taker = takers.next();
                let preempted = taker.is_some();
                let what = taker.map_or_else(
                    || "too few workers would be left without those that leave".to_owned(),
                    |taker| {
                        format!("job {} of priority {} needs its workers", taker.id, taker.queue.priority)
                    },
                );
                let reason = format!("{what}; going on from a checkpoint");
                self.stop_job(id, Goal::Queued { reason, preempted });
            }
        }
    }

    /// The job leaves its ring for the queue, unless that was to no avail too often.
    fn leave_ring(&mut self, id: JobId, what: &str, survivors: bool) {
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        let (tries, most) = (job.tries, job.most_tries());
        let failure = job.ring.as_ref().and_then(|ring| ring.last_failure.as_ref());
        let cause = failure.map_or_else(String::new, |failure| format!(": {failure}"));
        if tries >= most {
            let reason = format!("worker lost: {what} (tried {tries} times without a new step){cause}");
            self.reach(id, &Goal::Failed { failure: Failure::WorkerLost, reason });
            return;
        }
        if survivors {
            let reason = format!("{what}; going on from a checkpoint{cause}");
            self.stop_job(id, Goal::queued(reason));
            return;
        }
        let from = self.start_of_next_ring(id);
        self.reach(id, &Goal::queued(format!("{what}; going on from {from}{cause}")));
    }

    /// The next epoch: those that stay in their order, then those that join.
    fn reform(&mut self, id: JobId, plan: &Plan) {
        let Some(old) = self.ring(id) else { return };
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        if old.fruitless >= self.cluster.options.fruitless {
            let what = format!("the ring broke {} times in a row without a new step", old.fruitless);
            self.leave_ring(id, &what, true);
            return;
        }
        let epoch = Epoch(job.rings + 1);
        let reason = self.say_why(id, &old, plan);
        let (next, left) = self.next_ring(&old, plan, epoch);
        let members = next.members.clone();
        let now = self.now;
        self.change_ring(id, |ring| *ring = next);
        self.leave_out(id, &old, &plan.apart);
        for member in &members {
            self.cluster.change_worker(member.worker, |worker| worker.last_held = now);
        }
        let Some(job) = self.job_mut(id) else { return };
        job.rings = epoch.0;
        job.send_orders(epoch);
        if !plan.after_step {
            job.reason = format!("re-forming the ring: {reason}");
        }
        for member in &members {
            self.tell_to_enter(id, member.worker, plan.after_step, &reason);
        }
        for (worker, is_told) in left {
            self.dismiss(id, worker, old.epoch, is_told.then_some(plan.after_step), &reason);
        }
        self.look_at_ring(id);
    }

    /// The ring of a plan, and who is not in it any more, each with whether it is to be told that it leaves.
    fn next_ring(&self, old: &Ring, plan: &Plan, epoch: Epoch) -> (Ring, Vec<(WorkerId, bool)>) {
        let entering =
            |member: &Member| Member { phase: Phase::Assigned, pause: None, gone: false, ..member.clone() };
        let joiners = plan.join.iter().filter_map(|joiner| old.joining.get(*joiner));
        let stay = plan.stay.iter().filter_map(|rank| old.members.get(*rank));
        let joiners = joiners.map(|joiner| Member { newcomer: true, ..entering(&joiner.member) });
        let members: Vec<Member> = stay.map(entering).chain(joiners).collect();
        let same_head =
            members.first().map(|member| member.worker) == old.members.first().map(|one| one.worker);
        let joining = old.joining.iter().enumerate().filter(|(joiner, _)| !plan.join.contains(joiner));
        let since = old.reforming.as_ref().map(|reforming| reforming.since);
        let since = since.or_else(|| broke_at(old)).unwrap_or(self.now);
        let planned = plan.after_step && old.reforming.as_ref().is_none_or(|before| before.planned);
        let ring = Ring {
            epoch,
            formed: self.now,
            joining: joining.map(|(_, joiner)| joiner.clone()).collect(),
            reformed: old.reformed + (epoch.0 - old.epoch.0),
            led: if same_head { old.led + (epoch.0 - old.epoch.0) } else { 0 },
            reforming: Some(Reforming { since, planned, spare_by: None }),
            link: broken_link(old, plan),
            fruitless: old.fruitless + u32::from(!plan.after_step),
            broken: None,
            last_failure: old.last_failure.clone(),
            paced: old.paced,
            started: true,
            pauses: old.pauses,
            patience: old.patience,
            returns_by: old.returns_by,
            members,
        };
        let gone = |ranks: &[usize], told: bool| {
            let members: Vec<_> = ranks.iter().filter_map(|rank| old.members.get(*rank)).collect();
            members.into_iter().map(move |member| (member.worker, told)).collect::<Vec<_>>()
        };
        (ring, [gone(&plan.lost, false), gone(&plan.apart, false), gone(&plan.leave, true)].concat())
    }

    /// A worker that was a member until the epoch `old` has no place any more. `leaves`: it is told to leave, after this step
    /// or at once.
    fn dismiss(&mut self, id: JobId, worker: WorkerId, old: Epoch, leaves: Option<bool>, reason: &str) {
        let Some(after_step) = leaves else {
            return self.release(worker, id, old, reason);
        };
        if let Some(enter) = self.enter_ring(id, None, after_step, reason) {
            // It may hold its rank by either epoch until it has left.
            let epochs = [(id, old), (id, enter.epoch)];
            self.cluster.change_worker(worker, |worker| worker.releasing.extend(epochs));
            self.tell(worker, Down::EnterRing(Box::new(enter)));
        }
    }

    /// Tells a member of the newest ring to enter it.
    pub(super) fn tell_to_enter(&mut self, id: JobId, worker: WorkerId, after_step: bool, reason: &str) {
        let rank = self.ring(id).and_then(|ring| ring.rank_of(worker));
        let Some(rank) = rank.and_then(|rank| u32::try_from(rank).ok()) else { return };
        if let Some(enter) = self.enter_ring(id, Some(rank), after_step, reason) {
            self.tell(worker, Down::EnterRing(Box::new(enter)));
        }
    }

    fn enter_ring(&self, id: JobId, rank: Option<u32>, after_step: bool, reason: &str) -> Option<EnterRing> {
        let ring = self.ring(id)?;
        let members = ring.members.iter().map(|member| (member.worker, member.address.clone())).collect();
        let (epoch, protocol, reason) = (ring.epoch, self.protocol_of(&ring), reason.to_owned());
        let orders = self.cluster.jobs.get(&id)?.orders_of(epoch);
        Some(EnterRing { job: id, epoch, members, protocol, rank, after_step, reason, orders })
    }

    pub(super) fn ring(&self, id: JobId) -> Option<Arc<Ring>> {
        self.cluster.jobs.get(&id)?.ring.clone()
    }

    /// Changes what is stored of a job's ring.
    pub(super) fn change_ring(&mut self, id: JobId, change: impl FnOnce(&mut Ring)) {
        if self.job_mut(id).is_some() {
            self.cluster.change_ring(id, change);
        }
    }
}

/// When the first member said that the ring broke.
fn broke_at(ring: &Ring) -> Option<Time> {
    ring.present().filter_map(|(_, member)| member.pause.as_ref()).map(|pause| pause.since).min()
}

/// The link that broke, and how often in a row.
fn broken_link(old: &Ring, plan: &Plan) -> Option<BrokenLink> {
    let Some((one, other)) = plan.link else { return if plan.after_step { old.link.clone() } else { None } };
    let workers = (old.members.get(one)?.worker, old.members.get(other)?.worker);
    let before = old.link.as_ref().filter(|link| link.workers == workers);
    Some(BrokenLink { workers, times: before.map_or(0, |link| link.times) + 1 })
}

#[cfg(test)]
mod tests;
