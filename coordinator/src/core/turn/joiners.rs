//! Workers that prepare for a job while it runs.

use std::collections::BTreeSet;

use ringtune_shared::ids::{JobId, WorkerId};

use super::Turn;
use super::reforms::is_worth_a_member;
use crate::core::cluster::Want;
use crate::core::effect::Down;
use crate::core::input::HeldRank;
use crate::core::job::{Joiner, Member, Phase, Ring};
use crate::core::loss::Loss;
use crate::core::needs::Needs;
use crate::core::pool::Availability;
use crate::core::queue_walk::QueueWalk;
use crate::core::record::{EventBody, LogLevel};
use crate::core::time::Time;

impl Turn<'_> {
    /// Gives free workers of these classes to rings that run and want them so much.
    pub(super) fn find_joiners(&mut self, want: Want, wanted: impl Fn(&str) -> bool) {
        let classes = self.cluster.pool.free_classes().filter(|class| wanted(class));
        let classes: Vec<String> = classes.map(str::to_owned).collect();
        for class in classes {
            let mut refused = BTreeSet::new();
            while let Some(worker) = self.cluster.pool.spare_of(&class, &refused) {
                let may_join = |id: &JobId| {
                    self.cluster.jobs.get(id).is_some_and(|job| {
                        job.stop.is_none() && !job.pauses() && (want == Want::Spare || is_worth_a_member(job))
                    })
                };
                let takes = |id: &JobId| {
                    let known = self.cluster.workers.get(&worker);
                    self.cluster.jobs.get(id).is_some_and(|job| {
                        !job.links.keeps_apart(worker, self.now)
                            && self.cluster.room_of(&job.queue.owner) > 0
                            && known.is_some_and(|worker| job.takes(worker, &Needs::of(job)))
                    })
                };
                let mut short = self.cluster.short.of_class(&class, want).filter(may_join).peekable();
                if short.peek().is_none() {
                    break;
                }
                let found = short.find(takes);
                drop(short);
                match found {
                    Some(job) => self.add_joiner(job, worker),
                    None => drop(refused.insert(worker)),
                }
            }
        }
    }

    /// The classes whose free workers are kept for a job that begins in a moment: with those that are just letting go of
    /// another rank there are enough.
    pub(super) fn kept_for_a_moment(&self, walk: &QueueWalk) -> BTreeSet<String> {
        let kept = walk.kept().iter().filter(|((class, _), _)| {
            // Only then does it matter.
            self.cluster.short.of_class(class, Want::Growth).next().is_some()
        });
        let begins = kept.filter(|((class, needs), (_, id))| {
            let Some(job) = self.cluster.jobs.get(id) else { return false };
            let (_, needed) = job.ranks();
            let available = self.cluster.workers().filter(|worker| {
                worker.capabilities.numerics_class == *class
                    && Availability::of(worker, false).usable()
                    && self.cluster.place_of(worker.id).is_none()
                    && job.takes(worker, needs)
            });
            available.take(needed as usize).count() == needed as usize
        });
        begins.map(|((class, _), _)| class.clone()).collect()
    }

    fn add_joiner(&mut self, id: JobId, worker: WorkerId) {
        let Some(member) = self.member(worker) else { return };
        let Some(epoch) = self.ring(id).map(|ring| ring.epoch) else { return };
        let note = format!("{} is getting ready to join the ring", member.host_name);
        self.mark_held(worker);
        self.change_ring(id, |ring| ring.joining.push(Joiner { member, epoch }));
        if let Some(links) = self.links_mut(id) {
            links.joiners.remove(&worker);
        }
        self.record(id, EventBody::note(LogLevel::Info, note));
        let timeout = self.cluster.options.session_timeout;
        self.cluster.deadlines.by(crate::core::deadlines::Subject::Job(id), self.now.plus(timeout));
        self.assign_joiner(id, worker);
    }

    /// Tells a joiner of its place.
    fn assign_joiner(&mut self, id: JobId, worker: WorkerId) {
        if let Some(assignment) = self.assignment(id, None) {
            self.tell(worker, Down::Assignment(Box::new(assignment)));
        }
    }

    /// What a joiner says of itself.
    pub(super) fn observe_joiner(&mut self, worker: WorkerId, held: &HeldRank) {
        self.mark_held(worker);
        let id = held.job;
        let Some(known) = self.ring(id).and_then(|ring| ring.joiner(worker).cloned()) else { return };
        let host = known.member.host_name;
        match held.phase {
            Phase::Failed => {
                let loss = Loss::RankFailed(held.fault);
                if loss.is_refusal() {
                    self.note_refusal(id, worker, loss);
                }
                self.blame(id, worker, loss);
                self.drop_joiner(id, worker, &format!("{host} cannot join the ring: {}", held.reason));
            }
            Phase::Stopped => self.drop_joiner(id, worker, &format!("{host} does not join the ring")),
            Phase::Preparing | Phase::Ready if held.phase > known.member.phase => {
                let joiners = self.ring_mut(id).map(|ring| ring.joining.iter_mut());
                let joiner = joiners.and_then(|mut all| all.find(|one| one.member.worker == worker));
                if let Some(joiner) = joiner {
                    joiner.member.phase = held.phase;
                }
                if held.phase == Phase::Ready {
                    self.works_well(worker);
                    self.look_at_ring(id);
                }
            }
            _ => {}
        }
    }

    /// A joiner said hello again. `held`: what it holds of the job.
    pub(super) fn joiner_is_back(
        &mut self,
        id: JobId,
        worker: WorkerId,
        incarnation: u64,
        held: Option<&HeldRank>,
    ) {
        let Some(joiner) = self.ring(id).and_then(|ring| ring.joiner(worker).cloned()) else { return };
        let Member { incarnation: before, phase, host_name, .. } = joiner.member;
        match held {
            Some(held) => self.observe_joiner(worker, held),
            // The assignment may be lost. The next one is of the ring as it is now.
            None if before == incarnation && phase == Phase::Assigned => {
                self.mark_held(worker);
                self.change_ring(id, |ring| {
                    let epoch = ring.epoch;
                    let joiner = ring.joining.iter_mut().find(|one| one.member.worker == worker);
                    joiner.into_iter().for_each(|joiner| joiner.epoch = epoch);
                });
                self.assign_joiner(id, worker);
            }
            None => self.drop_joiner(id, worker, &format!("{host_name} restarted before it joined the ring")),
        }
    }

    /// A joiner is out: it costs nothing but a line.
    pub(super) fn drop_joiner(&mut self, id: JobId, worker: WorkerId, why: &str) {
        let Some(joiner) = self.ring(id).and_then(|ring| ring.joiner(worker).cloned()) else { return };
        let note = self.cut(why);
        self.record(id, EventBody::note(LogLevel::Info, note));
        self.change_ring(id, |ring| ring.joining.retain(|one| one.member.worker != worker));
        self.release(worker, id, joiner.epoch, why);
    }

    /// All joiners are let go: nobody is to come in any more.
    pub(super) fn drop_joiners(&mut self, id: JobId, reason: &str) {
        let Some(ring) = self.ring(id).filter(|ring| !ring.joining.is_empty()) else { return };
        self.change_ring(id, |ring| ring.joining.clear());
        for joiner in &ring.joining {
            self.release(joiner.member.worker, id, joiner.epoch, reason);
        }
    }

    /// Lets those go who are away for too long, do not hold their place, or are withdrawn.
    pub(super) fn look_at_joiners(&mut self, id: JobId) {
        let Some(ring) = self.ring(id) else { return };
        for joiner in &ring.joining {
            let (worker, host) = (joiner.member.worker, &joiner.member.host_name);
            let known = self.cluster.workers.get(&worker);
            if known.is_some_and(|worker| worker.draining || worker.leaving) {
                self.drop_joiner(id, worker, &format!("{host} leaves and does not join the ring"));
            } else if self.joiner_deadline(&ring, joiner) <= self.now {
                self.blame(id, worker, Loss::Overdue);
                self.drop_joiner(id, worker, &format!("{host} was lost before it joined the ring"));
            }
        }
    }

    /// By when a joiner must be back, or must say that it prepares.
    pub(super) fn joiner_deadline(&self, ring: &Ring, joiner: &Joiner) -> Time {
        let timeout = self.cluster.options.session_timeout;
        let Some(worker) = self.cluster.workers.get(&joiner.member.worker) else { return ring.patience };
        match worker.lost {
            Some(lost) => lost.plus(timeout).max(ring.patience),
            None => worker.last_held.plus(timeout),
        }
    }
}
