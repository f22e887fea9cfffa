//! Placement as the simplest way says it: a look at all jobs and all workers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringtune_shared::ids::{JobId, WorkerId};

use super::super::{Decision, Problem, place, problem};
use crate::core::scheduler::{Candidate, FreeWorkers};
use crate::core::shares::{Level, Shares};
use crate::core::{Capabilities, Cluster, Job, JobState, Options, Worker, WorkerState};

/// Whether a worker has what a job asks for.
fn fits(capabilities: &Capabilities, job: &Job) -> bool {
    let has =
        |wanted: &String| capabilities.labels.iter().any(|(key, value)| *wanted == format!("{key}={value}"));
    job.spec.common.cluster.constraints.iter().all(has)
}

pub(super) fn candidates(cluster: &Cluster, wanted: impl Fn(&Worker) -> bool) -> Vec<Candidate> {
    let wanted = cluster.workers().filter(|worker| worker.session.is_some() && wanted(worker));
    wanted
        .map(|worker| Candidate {
            worker: worker.id,
            host_name: worker.host_name.clone(),
            capabilities: worker.capabilities.clone(),
        })
        .collect()
}

/// Workers in the order in which they are to be taken.
pub(super) struct InOrder(pub(super) Vec<Candidate>);

impl InOrder {
    fn of_classes(&self, wanted: impl Fn(&str) -> bool) -> Self {
        self.of(|one| wanted(&one.capabilities.numerics_class))
    }

    fn of(&self, wanted: impl Fn(&Candidate) -> bool) -> Self {
        Self(self.0.iter().filter(|one| wanted(one)).cloned().collect())
    }
}

impl FreeWorkers for InOrder {
    fn classes(&self) -> impl Iterator<Item = (&str, usize)> {
        let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
        self.0.iter().for_each(|one| *classes.entry(&one.capabilities.numerics_class).or_default() += 1);
        classes.into_iter()
    }

    fn of_class(&self, class: &str, most: usize) -> Vec<Candidate> {
        self.of_classes(|name| name == class).0.into_iter().take(most).collect()
    }
}

/// Those of these workers that a job may have: none that refused it, while enough others of one class are connected; or else
/// all, those that refused it last.
pub(super) fn open_to(cluster: &Cluster, job: &Job, workers: &[Candidate]) -> InOrder {
    let others =
        candidates(cluster, |worker| !job.refused_by.contains(&worker.id) && fits(&worker.capabilities, job));
    let (_, needed) = job.ranks();
    let bound = job.pin.as_ref().map(|pin| &pin.numerics_class);
    let enough = others
        .iter()
        .filter(|one| bound.is_none_or(|class| *class == one.capabilities.numerics_class))
        .any(|one| {
            others
                .iter()
                .filter(|other| other.capabilities.numerics_class == one.capabilities.numerics_class)
                .count()
                >= needed as usize
        });
    let refused = |one: &Candidate| job.refused_by.contains(&one.worker);
    let mut open: Vec<Candidate> = workers.iter().filter(|one| !enough || !refused(one)).cloned().collect();
    let model = Some(job.model());
    let holds = |one: &Candidate| cluster.worker(one.worker).is_some_and(|worker| worker.model == model);
    open.sort_by_key(|one| (refused(one), !holds(one), one.host_name.clone(), one.worker));
    InOrder(open)
}

/// What becomes of each queued job, by the rule in words: in the order of priorities, of what owners have used, and of age; a
/// job that has to wait, but could run if all connected workers were free, keeps the free ones of every class that it could run
/// on then from those behind it. Who gets workers stands further behind with what is left, which is looked at again.
pub(super) fn reference(cluster: &Cluster) -> BTreeMap<JobId, Result<Vec<WorkerId>, String>> {
    let mut outcome = BTreeMap::new();
    let (mut shares, mut taken) = (cluster.shares.clone(), BTreeSet::new());
    loop {
        let placed = taken.len();
        walk(cluster, &mut shares, &mut taken, &mut outcome);
        if taken.len() == placed {
            return outcome;
        }
    }
}

/// Once along the queue.
fn walk(
    cluster: &Cluster,
    shares: &mut Shares,
    taken: &mut BTreeSet<WorkerId>,
    outcome: &mut BTreeMap<JobId, Result<Vec<WorkerId>, String>>,
) {
    let fairness = Options::default().fairness;
    let mut queue: Vec<&Arc<Job>> = cluster.jobs().filter(|job| job.state == JobState::Queued).collect();
    queue.retain(|job| !matches!(outcome.get(&job.id), Some(Ok(_))));
    let mut kept: Vec<(Key, String, &Job)> = Vec::new();
    while !queue.is_empty() {
        let key = |job: &Job| {
            (
                cluster.standing_of(&job.queue.owner).late,
                Reverse(job.urgency()),
                shares.level(&job.queue.owner, &fairness),
                job.number,
            )
        };
        let first = (0..queue.len()).min_by_key(|place| key(queue[*place])).unwrap();
        let (job, own) = (queue[first], key(queue[first]));
        queue.remove(first);
        let (owner, (_, needed)) = (&job.queue.owner, job.ranks());
        let (limit, held) = (cluster.options.limits.owner_ranks, shares.held(owner));
        if limit > 0 && held + needed > limit {
            let reason = format!(
                "waiting for workers: its owner holds {held} ranks, {needed} more are needed; allowed: {limit}, by \
                 limits.owner_ranks"
            );
            outcome.insert(job.id, Err(reason));
            continue;
        }
        let room = if limit > 0 { limit - held } else { u32::MAX };
        let rests = |worker: &Worker| worker.rests_until.is_some() || worker.rests_for(owner);
        let is_free = |worker: &Worker| {
            cluster.worker_state(worker) == WorkerState::Idle && !taken.contains(&worker.id)
        };
        let met = |worker: &Worker| fits(&worker.capabilities, job);
        let free = candidates(cluster, |worker| !rests(worker) && is_free(worker) && met(worker));
        let connected = candidates(cluster, |worker| !rests(worker) && met(worker));
        let resting = candidates(cluster, |worker| {
            worker.rests_until.is_some() || worker.rests_for(owner) && met(worker)
        })
        .len();
        let (open, all) = (open_to(cluster, job, &free), open_to(cluster, job, &connected));
        let runs = |on: &InOrder| matches!(place(&problem(job), on), Decision::Place(_));
        let keeps = |(_, class, keeper): &(Key, String, &Job), one: &Candidate| {
            *class == one.capabilities.numerics_class && fits(&one.capabilities, keeper)
        };
        let left = open.of(|one| !kept.iter().any(|kept| keeps(kept, one)));
        let world_size = problem(job).world_size.min(room);
        let decision = match (place(&Problem { world_size, ..problem(job) }, &left), runs(&open)) {
            (Decision::Place(placement), _) => {
                for member in &placement.members {
                    taken.insert(*member);
                    shares.hold(owner, true, cluster.latest, fairness.half_life);
                }
                Ok(placement.members)
            }
            (Decision::Wait(_), true) => {
                let enough = |kept: &&(Key, String, &Job)| {
                    let of_class = open.of_classes(|name| name == kept.1);
                    runs(&of_class) && of_class.0.iter().any(|one| keeps(kept, one))
                };
                let (_, _, first) = kept.iter().filter(enough).min_by_key(|(key, ..)| *key).unwrap();
                Err(format!("waiting for workers: job {} comes first", first.id))
            }
            (Decision::Wait(_), false) => {
                let Decision::Wait(mut missing) = place(&problem(job), &open) else { unreachable!() };
                let constraints = &job.spec.common.cluster.constraints;
                if !constraints.is_empty() {
                    let bound = job.pin.as_ref().map(|pin| &pin.numerics_class);
                    let sizes = all.classes().filter(|(class, _)| bound.is_none_or(|bound| bound == class));
                    let (most, connected) =
                        (sizes.map(|(_, size)| size).max(), candidates(cluster, |_| true));
                    let (most, connected) = (most.unwrap_or(0), connected.len());
                    missing += &format!("; {most} of {connected} workers have {}", constraints.join(", "));
                }
                let refusing = free.len() - open.0.len();
                if refusing > 0 {
                    missing += &format!("; {refusing} more keep from the job what it asks for");
                }
                if resting > 0 {
                    missing += &format!("; {resting} more are resting after they failed to prepare");
                }
                Err(missing)
            }
        };
        if decision.is_err() {
            for (class, _) in open.classes().filter(|(class, _)| runs(&all.of_classes(|name| name == *class)))
            {
                kept.push((own, class.to_owned(), &**job));
            }
        }
        outcome.insert(job.id, decision);
    }
}

/// A job's place in the queue.
type Key = (bool, Reverse<u32>, Level, u64);
