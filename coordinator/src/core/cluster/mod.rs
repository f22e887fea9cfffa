//! The state: all jobs that have not ended, and all workers.

mod indexes;
mod latecomers;
mod requests;
mod rings;
mod short;
mod standings;
mod sweeps;

pub use standings::OwnerLoad;
use std::cmp::Reverse;
use std::sync::Arc;

use ringtune_shared::ids::{ContentHash, JobId, SweepId, WorkerId};
use ringtune_shared::version::Dialect;

use self::latecomers::Latecomers;
use self::requests::Requests;
use self::rings::Rings;
use self::short::ShortRings;
pub(super) use self::short::Want;
use super::deadlines::{Deadlines, Subject};
use super::job::Job;
use super::job_state::JobState;
use super::pool::{Availability, OpenTo, Pool};
use super::queue::Queue;
use super::record::Checkpoint;
use super::shares::{Account, Fairness, Shares};
use super::time::Time;
use super::worker::{RingPlace, Worker, WorkerState};
use super::{SharedMap, SharedSet};

/// Limits and times of the core. Times in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Protocols and features that this coordinator speaks with workers.
    pub dialect: Dialect,
    /// How long until a silent session is lost, and how long a lost member has to come back.
    pub session_timeout: i64,
    /// Upper bound of that while its ring prepares: nothing of the job is done yet, so another ring costs little, and a
    /// worker that lives dials again at once.
    pub preparing: i64,
    /// How long members of a ring have to come back after a restart of the coordinator.
    pub recovery: i64,
    /// How long ranks have to stop by themselves when a job is cancelled.
    pub cancel: i64,
    /// How long another rank has to say why, after a rank lost its neighbour.
    pub root_cause: i64,
    /// How long the last steps may take to come after all ranks finished.
    pub finish: i64,
    /// How long until a lost worker without a rank is forgotten.
    pub forget_worker: i64,
    /// How long a worker on which a rank failed gets none of the same owner, doubled with each further failure; where jobs of
    /// several owners failed, none of anybody.
    pub rest: i64,
    /// Upper bound of that.
    pub longest_rest: i64,
    /// How long the other ranks have to report that the ring broke, after the first one did.
    pub verdict: i64,
    /// How long the members of a ring wait for other workers when they are too few.
    pub spare: i64,
    /// How long rank 0 may be away once the other ranks have done all steps; then one of them sends the files.
    pub head: i64,
    /// How long a member of a ring that is being formed may be away: the others wait for it.
    pub entry: i64,
    /// How long a member may stay away after a restart of the coordinator if another one reports it lost: nearly all
    /// that live are back by then.
    pub named: i64,
    /// How long workers may take to report whom they reach; each tries for less.
    pub look: i64,
    /// How long a worker that was left out of a ring because of a link is not asked to join it; doubled each further time.
    pub apart: i64,
    /// Upper bound of that.
    pub longest_apart: i64,
    /// How often a ring may change without a new step before its job goes back to the queue.
    pub fruitless: u32,
    /// Steps of a job whose states are remembered, the newest ones.
    pub hashes: usize,
    /// How the queue weighs what owners have used.
    pub fairness: Fairness,
    /// By how much a job's priority must be higher than another's for the one to take ranks from the other.
    pub preempt_difference: u32,
    /// After how long in the queue a job comes before all that have not waited so long.
    pub longest_wait: i64,
    /// What may change while the coordinator runs.
    pub limits: Limits,
    /// Files of a job.
    pub artifacts_per_job: u64,
    /// Characters of a log line or a reason; the rest is cut off.
    pub text_length: usize,
}

/// How much of what there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Jobs in the queue.
    pub queued_jobs: usize,
    /// Of one owner; 0: as many as of all.
    pub owner_queued_jobs: usize,
    /// Ranks of one owner at a time; 0: as many as there are.
    pub owner_ranks: u32,
    /// Workers connected. As many lost ones are remembered at most.
    pub workers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { queued_jobs: 20_000, owner_queued_jobs: 0, owner_ranks: 0, workers: 2000 }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dialect: Dialect::ours(),
            session_timeout: 15_000,
            preparing: 2_000,
            recovery: 60_000,
            cancel: 30_000,
            root_cause: 5_000,
            finish: 10_000,
            forget_worker: 600_000,
            rest: 10_000,
            longest_rest: 600_000,
            verdict: 400,
            spare: 600_000,
            head: 2_000,
            entry: 1_500,
            named: 4_500,
            look: 2_000,
            apart: 10_000,
            longest_apart: 600_000,
            fruitless: 12,
            hashes: 1000,
            fairness: Fairness::default(),
            preempt_difference: 100,
            longest_wait: 7 * 86_400_000,
            limits: Limits::default(),
            artifacts_per_job: 10_000,
            text_length: 4096,
        }
    }
}

/// What a store gives back after a restart.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// Every job that has not ended.
    pub jobs: Vec<Job>,
    /// The checkpoints of these jobs that are there, in any order.
    pub checkpoints: Vec<(JobId, Checkpoint)>,
    /// The states after the newest steps of these jobs.
    pub hashes: Vec<(JobId, u64, ContentHash)>,
    /// Workers that a user drained.
    pub drained: Vec<WorkerId>,
    /// What owners have used.
    pub accounts: Vec<(String, Account)>,
    /// The number of the newest job there ever was; 0: none.
    pub last_number: u64,
}

/// The state that the coordinator decides on.
///
/// A copy costs a few counted references, however much it holds: everything is in [`SharedMap`]s. Jobs and workers are the
/// state; the rest are indexes over them, kept by the methods in `indexes.rs` alone, so that no input that concerns one
/// job or worker looks at all of them.
#[derive(Debug, Clone)]
pub struct Cluster {
    pub(super) options: Arc<Options>,
    pub(super) jobs: SharedMap<JobId, Arc<Job>>,
    pub(super) workers: SharedMap<WorkerId, Arc<Worker>>,
    pub(super) last_number: u64,
    /// The latest time of an input: inputs may come a little out of order.
    pub(super) latest: Time,
    pub(super) deadlines: Deadlines,
    pub(super) queue: Queue,
    pub(super) pool: Pool,
    /// What a job's ring gave a worker: a rank, or a place among those that prepare to join.
    pub(super) places: SharedMap<WorkerId, RingPlace>,
    /// All rings.
    pub(super) rings: Rings,
    /// Rings that run and have room for more.
    pub(super) short: ShortRings,
    /// Workers that a user drained, known or not.
    pub(super) drained: SharedSet<WorkerId>,
    /// Owners whose jobs come after those of others.
    latecomers: Latecomers,
    /// What owners have used.
    pub(super) shares: Shares,
    /// When that was last counted.
    pub(super) use_counted: Time,
    /// The states after the newest steps of each job that did any.
    pub(super) hashes: SharedMap<JobId, SharedMap<u64, ContentHash>>,
    /// The checkpoints that are there, of jobs that have any, the newest first; of two of one step, the user's.
    pub(super) checkpoints: SharedMap<JobId, SharedMap<(Reverse<u64>, bool), Checkpoint>>,
    pub(super) requests: Requests,
    /// The jobs of each sweep that have not ended.
    pub(super) sweeps: SharedMap<SweepId, SharedSet<JobId>>,
    /// Jobs by state, in the order of [`JobState::ALL`].
    pub(super) job_counts: [usize; JobState::ALL.len()],
    /// Something changed that may let a queued job start.
    pub(super) placement_due: bool,
    /// From when on whoever is not known as a worker may be taken for none: after a restart they come back one by one.
    pub(super) knows_workers_from: Time,
}

impl Cluster {
    /// The state after a start: queued jobs queue again, rings wait for their members.
    pub fn recover(options: Options, recovered: Recovered, now: Time) -> Self {
        let patience = now.plus(options.recovery);
        let returns_by = now.plus(options.session_timeout.min(options.recovery));
        let spare_by = now.plus(options.spare);
        let mut cluster = Self {
            options: Arc::new(options),
            jobs: SharedMap::default(),
            workers: SharedMap::default(),
            last_number: recovered.last_number,
            latest: now,
            deadlines: Deadlines::default(),
            queue: Queue::default(),
            pool: Pool::default(),
            places: SharedMap::default(),
            rings: Rings::default(),
            short: ShortRings::default(),
            drained: SharedSet::default(),
            latecomers: Latecomers::default(),
            shares: Shares::default(),
            use_counted: now,
            hashes: SharedMap::default(),
            checkpoints: SharedMap::default(),
            requests: Requests::default(),
            sweeps: SharedMap::default(),
            job_counts: [0; JobState::ALL.len()],
            placement_due: true,
            knows_workers_from: if recovered.last_number > 0 { patience } else { Time::default() },
        };
        for mut job in recovered.jobs {
            if let Some(ring) = &mut job.ring {
                let ring = Arc::make_mut(ring);
                (ring.patience, ring.returns_by) = (patience, returns_by);
                // It was stored by a clock that may have been set back since.
                let waits_until = ring.reforming.as_mut().and_then(|reforming| reforming.spare_by.as_mut());
                waits_until.into_iter().for_each(|until| *until = (*until).min(spare_by));
                cluster.deadlines.by(Subject::Job(job.id), returns_by);
            }
            if let Some(stop) = &mut job.stop {
                stop.deadline = patience;
            }
            // Found out below: the files say it.
            job.checkpoint = None;
            cluster.insert_job(Arc::new(job));
        }
        for (id, checkpoint) in recovered.checkpoints {
            if !cluster.jobs.contains_key(&id) {
                continue;
            }
            let newest = cluster.put_checkpoint(id, checkpoint);
            if let Some(job) = cluster.jobs.get_mut(&id) {
                Arc::make_mut(job).checkpoint = newest;
            }
        }
        for (job, step, state) in recovered.hashes {
            if cluster.jobs.contains_key(&job) {
                cluster.put_hash(job, step, state);
            }
        }
        recovered.drained.into_iter().for_each(|worker| cluster.drained.insert_mut(worker));
        let owners: Vec<String> = recovered.accounts.iter().map(|(owner, _)| owner.clone()).collect();
        cluster.shares.recover(recovered.accounts);
        owners.iter().for_each(|owner| cluster.look_at_standing(owner));
        cluster
    }

    /// Its limits and times.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The jobs that have not ended.
    pub fn jobs(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.jobs.values()
    }

    /// A job that has not ended.
    pub fn job(&self, id: JobId) -> Option<&Arc<Job>> {
        self.jobs.get(&id)
    }

    /// The workers, in the order of their ids.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.workers.values()
    }

    /// One worker.
    pub fn worker(&self, id: WorkerId) -> Option<&Arc<Worker>> {
        self.workers.get(&id)
    }

    /// The job whose ring gave a worker a rank, and which one.
    pub fn rank_of(&self, worker: WorkerId) -> Option<(JobId, u32)> {
        match self.places.get(&worker)? {
            RingPlace::Rank(job, rank) => Some((*job, *rank)),
            RingPlace::Joins(_) => None,
        }
    }

    /// What a ring gave a worker, if one did.
    pub fn place_of(&self, worker: WorkerId) -> Option<RingPlace> {
        self.places.get(&worker).copied()
    }

    /// The state after a step of a job, if it is remembered.
    pub fn hash_of(&self, job: JobId, step: u64) -> Option<ContentHash> {
        self.hashes.get(&job)?.get(&step).copied()
    }

    /// How users see a worker.
    pub fn worker_state(&self, worker: &Worker) -> WorkerState {
        worker.state(self.places.contains_key(&worker.id))
    }

    /// The checkpoints of a job that are there, the newest first.
    pub fn checkpoints(&self, job: JobId) -> impl Iterator<Item = &Checkpoint> {
        self.checkpoints.get(&job).into_iter().flat_map(SharedMap::values)
    }

    /// How many jobs are in `state`; 0 for the final ones, which are not kept here.
    pub fn count_jobs(&self, state: JobState) -> usize {
        self.job_counts[state as usize]
    }

    /// How many workers are in `state`.
    pub fn count_workers(&self, state: WorkerState) -> usize {
        self.pool.count_of(state)
    }

    /// The free workers that are open to this job.
    pub(super) fn open_to<'a>(&'a self, job: &'a Job) -> OpenTo<'a> {
        let refusing = job.refused_by.iter().filter_map(|id| {
            let worker = self.workers.get(id)?;
            Some((&**worker, Availability::of(worker, self.places.contains_key(id))))
        });
        let availability = |worker: &Worker| Availability::of(worker, self.places.contains_key(&worker.id));
        let doubted = self.pool.doubted().filter_map(|id| self.workers.get(&id));
        let resting = doubted.filter(|worker| worker.rests_for(&job.queue.owner));
        let resting = resting.map(|worker| (&**worker, availability(worker)));
        OpenTo::new(&self.pool, job, self.available(), refusing, resting)
    }

    /// All workers, with what they can do now.
    pub(super) fn available(&self) -> impl Iterator<Item = (&Worker, Availability)> {
        let has_place = |id: &WorkerId| self.places.contains_key(id);
        self.workers.values().map(move |worker| (&**worker, Availability::of(worker, has_place(&worker.id))))
    }

    /// Changes limits. Nothing that is there ends for it.
    pub fn set_limits(&mut self, limits: Limits) {
        Arc::make_mut(&mut self.options).limits = limits;
        self.placement_due = true;
    }

    /// An ended job is deleted: the name of its request may be used again.
    pub fn forget_request(&mut self, job: &Job) {
        if let Some(request) = &job.request {
            self.requests.forget(&request.id, job.id);
        }
    }
}
