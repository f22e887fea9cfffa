//! Jobs whose priority lets them take ranks from others: carries out what [`gifts`] says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringtune_shared::ids::{JobId, WorkerId};

use super::Turn;
use crate::core::job::{Job, Ring};
use crate::core::job_state::JobState;
use crate::core::needs::Needs;
use crate::core::pool::Availability;
use crate::core::preemption::{Gift, Giver, gifts};
use crate::core::record::{EventBody, LogLevel};
use crate::core::scheduler::FreeWorkers as _;
use crate::core::stop::Goal;

/// How many members leave their rings for a job, by that and by their class.
type Leaving = BTreeMap<(JobId, String), usize>;

/// Jobs that are looked at in one go.
const MOST: usize = 16;

impl Turn<'_> {
    /// Has running jobs give ranks to those that wait with a priority so much higher. The classes in which ranks are on their
    /// way to somebody.
    pub(super) fn preempt(&mut self) -> BTreeSet<String> {
        let difference = self.cluster.options.preempt_difference;
        let (mut looked_at, mut promised) = (BTreeSet::new(), BTreeMap::new());
        let mut leaving = None;
        while looked_at.len() < MOST {
            let has_rings = |class: &str, _: &Needs| self.cluster.rings.has(class, u32::MAX);
            let room = |owner: &str| self.cluster.room_of(owner);
            let next = self.cluster.queue.first_fitting(&self.cluster.pool, has_rings, room, &looked_at);
            let Some(job) = next.and_then(|id| self.cluster.jobs.get(&id)).cloned() else { break };
            looked_at.insert(job.id);
            // What a latecomer took would go back to those who come before it, and be taken again.
            let is_late = self.cluster.standing_of(&job.queue.owner).late;
            let most = job.queue.priority.checked_sub(difference).filter(|_| !is_late);
            // Those that follow are less urgent still, but behind one that has only waited for long.
            if most.is_none() && !job.overdue {
                break;
            }
            let leaving = leaving.get_or_insert_with(|| self.leaving());
            if let Some((class, given)) = self.best_class(&job, most, &promised, leaving) {
                *promised.entry(class.clone()).or_default() += job.ranks().1 as usize;
                given.into_iter().for_each(|gift| self.take(&job, gift));
            }
        }
        promised.into_keys().collect()
    }

    /// The class in which fewest jobs are stopped for a job, fewest ranks taken, and what is given there. `most`: the highest
    /// priority that it may take from. None: nothing is to be done, or nothing can be.
    fn best_class(
        &self,
        job: &Job,
        most: Option<u32>,
        promised: &BTreeMap<String, usize>,
        leaving: &Leaving,
    ) -> Option<(String, Vec<Gift>)> {
        let (_, needed) = job.ranks();
        let open = self.cluster.open_to(job);
        let classes = self.cluster.pool.classes().filter(|class| {
            job.bound_to().is_none_or(|bound| bound == *class) && open.usable_of(class) >= needed as usize
        });
        let answers = classes.filter_map(|class| {
            let free = open.classes().find(|(name, _)| *name == class).map_or(0, |(_, free)| free);
            let leaving = leaving.get(&(job.id, class.to_owned())).copied().unwrap_or(0);
            // Those that it may have at once or in a moment: without a place, or on their way out of a ring for it.
            let coming = free + self.cluster.pool.letting_go(class, open.needs()) + leaving;
            let coming = coming.saturating_sub(promised.get(class).copied().unwrap_or(0));
            let lacking = (needed as usize).saturating_sub(coming);
            let given = match lacking {
                0 => Some(Vec::new()),
                _ => gifts(&self.givers(job, open.needs(), class, most?), lacking),
            };
            Some((class.to_owned(), given?))
        });
        answers.min_by_key(|(class, given)| {
            let stopped = given.iter().filter(|gift| gift.all).count();
            let ranks: usize = given.iter().map(|gift| gift.members).sum();
            (stopped, ranks, class.clone())
        })
    }

    fn leaving(&self) -> Leaving {
        let mut leaving = Leaving::new();
        for class in self.cluster.pool.classes() {
            let rings = self.cluster.rings.of_class(class, u32::MAX);
            let rings = rings.filter_map(|id| self.cluster.jobs.get(&id)?.ring.as_ref());
            for (_, member) in rings.flat_map(|ring| ring.present()) {
                if let Some(to) = member.yields_to {
                    *leaving.entry((to, class.to_owned())).or_default() += 1;
                }
            }
        }
        leaving
    }

    /// The rings of a class that a job may take ranks from: of lower priorities first, and of the younger jobs.
    fn givers(&self, job: &Job, needs: &Needs, class: &str, most: u32) -> Vec<Giver> {
        let jobs = self.cluster.rings.of_class(class, most).filter_map(|id| self.cluster.jobs.get(&id));
        let giver = |giving: &Arc<Job>| {
            let ring = giving.ring.as_ref().filter(|ring| can_stop(giving, ring))?;
            let usable = |worker: WorkerId| self.is_usable(worker, job, needs);
            let members = ring.present().filter(|(_, member)| usable(member.worker)).count();
            let joining = ring.joining.iter().filter(|joiner| usable(joiner.member.worker)).count();
            let (_, min) = giving.ranks();
            let goes_on = giving.state == JobState::Running && ring.reforms();
            let spare = ring.present().count().saturating_sub(min as usize).min(members);
            (members > 0).then_some(Giver {
                job: giving.id,
                members,
                spare: if goes_on { spare } else { 0 },
                joining,
            })
        };
        jobs.filter_map(giver).collect()
    }

    /// `needs`: the job's.
    fn is_usable(&self, id: WorkerId, job: &Job, needs: &Needs) -> bool {
        let worker = self.cluster.workers.get(&id);
        worker.is_some_and(|worker| Availability::of(worker, false).usable() && job.takes(worker, needs))
    }

    /// A ring gives what it is to give to a job: at the end of its step, or at once where it has done none.
    fn take(&mut self, to: &Job, gift: Gift) {
        let Gift { job: id, joining, members, all } = gift;
        let Some(ring) = self.ring(id) else { return };
        let what = format!("job {} of priority {} needs its workers", to.id, to.queue.priority);
        let needs = Needs::of(to);
        let usable = |worker: &WorkerId| self.is_usable(*worker, to, &needs);
        let joiners: Vec<WorkerId> =
            ring.joining.iter().map(|joiner| joiner.member.worker).filter(usable).collect();
        // The last ones, so that rank 0 stays.
        let present = ring.present().map(|(_, member)| member.worker);
        let mut leaving: Vec<WorkerId> = present.filter(|worker| all || usable(worker)).collect();
        if !all {
            leaving.drain(..leaving.len().saturating_sub(members));
        }
        joiners.iter().rev().take(joining).for_each(|worker| {
            self.drop_joiner(id, *worker, &format!("a worker does not join the ring: {what}"));
        });
        if leaving.is_empty() {
            return;
        }
        let note = match all {
            true => format!("giving way after this step: {what}"),
            false => format!("{} rank(s) leave the ring after this step: {what}", leaving.len()),
        };
        self.record(id, EventBody::note(LogLevel::Info, note));
        self.change_ring(id, |ring| {
            let leaving = ring.members.iter_mut().filter(|member| leaving.contains(&member.worker));
            leaving.for_each(|member| member.yields_to = Some(to.id));
        });
        if self.cluster.jobs.get(&id).is_some_and(|job| job.state == JobState::Preparing) {
            // Nobody failed: it counts as no try.
            if let Some(job) = self.job_mut(id) {
                job.tries = job.tries.saturating_sub(1);
            }
            self.stop_job(id, Goal::Queued { reason: what, preempted: true });
        }
        self.look_at_ring(id);
    }

    /// The waiting job that a member of a ring gives its place to.
    pub(super) fn taker(&self, yields_to: Option<JobId>) -> Option<&Arc<Job>> {
        self.cluster.jobs.get(&yields_to?).filter(|job| job.state == JobState::Queued)
    }
}

/// Whether a job can leave its ring and lose nothing: it prepares, or it has a state that can be kept and is on no way out.
fn can_stop(job: &Job, ring: &Ring) -> bool {
    job.stop.is_none()
        && !ring.pauses
        && job.verification.is_none()
        && match job.state {
            JobState::Preparing => true,
            JobState::Running => ring.reforms() && job.spec.total_steps() > 0,
            _ => false,
        }
}
