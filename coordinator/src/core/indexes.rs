//! Changes of jobs and workers, with all that is found by them.
//!
//! Invariant: nothing else inserts, removes or changes a job's state or ring, or a worker.

use std::sync::Arc;

use ringtune_shared::ids::{ContentHash, JobId, WorkerId};

use super::cluster::Cluster;
use super::deadlines::Subject;
use super::job::{Job, JobState, RequestKey, Ring};
use super::pool::Standing;
use super::shared_map::SharedMap;
use super::worker::Worker;

/// Ended jobs whose requests are remembered. Whoever looked a request up in the store before it was there finds it here:
/// that many jobs do not end within one call.
const ENDED_REQUESTS: usize = 10_000;

/// Which request made which job: of all jobs that have not ended, and of the last ones that have.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests {
    by_id: SharedMap<String, (JobId, ContentHash)>,
    /// Those of ended jobs, in the order in which they ended.
    ended: SharedMap<u64, (String, JobId)>,
    next: u64,
}

impl Requests {
    /// The job of a request, and whether that was the same request.
    pub(super) fn find(&self, wanted: &RequestKey) -> Option<(JobId, bool)> {
        let (job, fingerprint) = self.by_id.get(&wanted.id)?;
        Some((*job, *fingerprint == wanted.fingerprint))
    }

    fn insert(&mut self, job: &Job) {
        if let Some(request) = &job.request {
            self.by_id.insert(request.id.clone(), (job.id, request.fingerprint));
        }
    }

    fn ended(&mut self, job: &Job) {
        let Some(request) = &job.request else { return };
        self.ended.insert(self.next, (request.id.clone(), job.id));
        self.next += 1;
        if self.ended.len() > ENDED_REQUESTS
            && let Some((&oldest, _)) = self.ended.first()
            && let Some((request, job)) = self.ended.remove(&oldest)
        {
            self.forget(&request, job);
        }
    }

    /// The name may be used again, if it is still this job's.
    pub(super) fn forget(&mut self, request: &str, job: JobId) {
        if self.by_id.get(request).is_some_and(|(known, _)| *known == job) {
            self.by_id.remove(request);
        }
    }
}

impl Cluster {
    pub(super) fn insert_job(&mut self, job: Arc<Job>) {
        self.job_counts[job.state as usize] += 1;
        self.requests.insert(&job);
        if job.state == JobState::Queued {
            self.queue.insert(&job);
            self.placement_due = true;
        }
        if let Some(ring) = &job.ring {
            self.seat(job.id, ring);
        }
        self.jobs.insert(job.id, job);
    }

    /// Takes out a job that ended.
    pub(super) fn remove_job(&mut self, id: JobId) -> Option<Arc<Job>> {
        let job = self.jobs.remove(&id)?;
        self.job_counts[job.state as usize] -= 1;
        self.requests.ended(&job);
        self.deadlines.forget(Subject::Job(id));
        Some(job)
    }

    /// Sets a job's state alone.
    pub(super) fn move_job(&mut self, id: JobId, to: JobState) {
        let Some(job) = self.jobs.get_mut(&id).map(Arc::make_mut) else { return };
        let from = std::mem::replace(&mut job.state, to);
        self.job_counts[from as usize] -= 1;
        self.job_counts[to as usize] += 1;
        if from == JobState::Queued {
            self.queue.remove(job);
            // Who waited behind it may come first now.
            self.placement_due = true;
        }
        if to == JobState::Queued {
            self.queue.insert(job);
            self.placement_due = true;
        }
    }

    /// Gives a job its ring.
    pub(super) fn set_ring(&mut self, id: JobId, ring: Ring) {
        let ring = Arc::new(ring);
        self.seat(id, &ring);
        if let Some(job) = self.jobs.get_mut(&id).map(Arc::make_mut) {
            job.ring = Some(ring);
        }
    }

    /// Takes a job's ring away.
    pub(super) fn take_ring(&mut self, id: JobId) -> Option<Arc<Ring>> {
        let ring = self.jobs.get_mut(&id).map(Arc::make_mut)?.ring.take()?;
        for member in &ring.members {
            self.members.remove(&member.worker);
        }
        Some(ring)
    }

    fn seat(&mut self, job: JobId, ring: &Ring) {
        for (rank, member) in (0..).zip(&ring.members) {
            self.members.insert(member.worker, (job, rank));
        }
    }

    /// A worker said hello, for the first time or again.
    pub(super) fn insert_worker(&mut self, worker: Worker) {
        if let Some(before) = self.workers.get(&worker.id).cloned() {
            self.pool.leave(&before);
        }
        self.pool.enter(&worker);
        self.workers.insert(worker.id, Arc::new(worker));
        self.placement_due = true;
    }

    pub(super) fn remove_worker(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.remove(&id) {
            self.pool.leave(&worker);
            self.deadlines.forget(Subject::Worker(id));
        }
    }

    /// Changes of a worker what its session does not fix. None: there is no such worker.
    pub(super) fn change_worker<T>(
        &mut self,
        id: WorkerId,
        change: impl FnOnce(&mut Worker) -> T,
    ) -> Option<T> {
        let worker = Arc::make_mut(self.workers.get_mut(&id)?);
        let before = Standing::of(worker);
        let value = change(worker);
        let after = Standing::of(worker);
        if before != after {
            self.pool.moved(worker, before, after);
            self.placement_due = true;
        }
        Some(value)
    }

    /// Whether every index is what the jobs and workers say. For tests.
    ///
    /// # Errors
    /// The first one that is not, by name.
    pub fn check_indexes(&self) -> Result<(), String> {
        let mut other = Self::recover((*self.options).clone(), super::Recovered::default(), self.latest);
        self.jobs.values().for_each(|job| other.insert_job(job.clone()));
        self.workers.values().for_each(|worker| other.insert_worker((**worker).clone()));
        let same = |what: &str, mine: String, others: String| match mine == others {
            true => Ok(()),
            false => Err(format!("{what}: {mine}, but it should be {others}")),
        };
        same("counts", format!("{:?}", self.job_counts), format!("{:?}", other.job_counts))?;
        same("queue", format!("{:?}", self.queue), format!("{:?}", other.queue))?;
        same("pool", format!("{:?}", self.pool.counts()), format!("{:?}", other.pool.counts()))?;
        same("members", format!("{:?}", self.members), format!("{:?}", other.members))?;
        let ranks = self.workers.values().filter_map(|worker| Some((worker.id, worker.rank?)));
        let known = self.members.iter().filter(|(worker, _)| self.workers.contains_key(*worker));
        let known = known.map(|(worker, rank)| (*worker, *rank));
        same("ranks", format!("{:?}", ranks.collect::<Vec<_>>()), format!("{:?}", known.collect::<Vec<_>>()))
    }
}
