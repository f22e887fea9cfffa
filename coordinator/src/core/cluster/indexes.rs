//! Changes of jobs and workers, which keep all indexes up to date.
//!
//! Invariant: nothing else inserts, removes or changes a job's state or ring, or a worker.

use std::cmp::Reverse;
use std::fmt::Debug;
use std::sync::Arc;

use ringtune_shared::ids::{ContentHash, JobId, WorkerId};

use super::{Cluster, Recovered};
use crate::core::deadlines::Subject;
use crate::core::job::{Job, Ring};
use crate::core::job_state::JobState;
use crate::core::needs::Needs;
use crate::core::pool::Availability;
use crate::core::record::Checkpoint;
use crate::core::time::Time;
use crate::core::worker::{RingPlace, Worker};

impl Cluster {
    pub(in crate::core) fn insert_job(&mut self, job: Arc<Job>) {
        self.job_counts[job.state as usize] += 1;
        self.requests.insert(&job);
        self.enter_sweep(&job);
        self.want(&Needs::of(&job));
        self.short.enter(&job);
        self.rings.enter(&job);
        self.jobs.insert_mut(job.id, job.clone());
        self.enter_end(job.id);
        if job.state == JobState::Queued {
            let since = if job.started.is_none() { job.created } else { self.latest };
            match job.waits_since {
                Time(0) => self.enqueue(job.id, since, self.latest),
                // It waits already: another state is made anew of the same jobs.
                _ => self.queue.insert(&job, self.standing_of(&job.queue.owner)),
            }
        }
        if let Some(ring) = &job.ring {
            self.seat(job.id, ring);
        }
    }

    fn want(&mut self, needs: &Needs) {
        let has_place = |id: &WorkerId| self.places.contains_key(id);
        let workers = self.workers.values();
        let workers = workers.map(|worker| (&**worker, Availability::of(worker, has_place(&worker.id))));
        self.pool.want(needs, workers);
    }

    /// Changes what is ordered of a job, and so what it needs of its workers.
    pub(in crate::core) fn change_orders(&mut self, id: JobId, change: impl FnOnce(&mut Job)) {
        let Some(job) = self.jobs.get_mut(&id).map(Arc::make_mut) else { return };
        let before = Needs::of(job);
        if job.state == JobState::Queued {
            self.queue.remove(job);
        }
        change(job);
        let job = job.clone();
        self.want(&Needs::of(&job));
        self.pool.unwant(&before);
        if job.state == JobState::Queued {
            self.queue.insert(&job, self.standing_of(&job.queue.owner));
            self.placement_due = true;
        }
    }

    /// Notes by when a job has to be done, if it has to be by any time.
    pub(in crate::core) fn enter_end(&mut self, id: JobId) {
        if let Some(end) = self.jobs.get(&id).and_then(|job| job.ends_by()) {
            self.deadlines.by(Subject::Job(id), end);
        }
    }

    /// A job waits, since then.
    fn enqueue(&mut self, id: JobId, since: Time, now: Time) {
        let Some(job) = self.jobs.get_mut(&id).map(Arc::make_mut) else { return };
        let overdue_at = since.plus(self.options.longest_wait);
        job.waits_since = since;
        job.overdue = overdue_at <= now;
        if !job.overdue {
            self.deadlines.by(Subject::Job(id), overdue_at);
        }
        let job = job.clone();
        self.queue.insert(&job, self.standing_of(&job.queue.owner));
        self.placement_due = true;
    }

    /// A job has waited so long that it comes before others.
    pub(in crate::core) fn make_overdue(&mut self, id: JobId, now: Time) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.state == JobState::Queued) else { return };
        self.queue.remove(job);
        let since = job.waits_since;
        self.enqueue(id, since, now);
    }

    /// Takes out a job that ended.
    pub(in crate::core) fn remove_job(&mut self, id: JobId) -> Option<Arc<Job>> {
        let job = self.jobs.get(&id)?.clone();
        self.jobs.remove_mut(&id);
        self.job_counts[job.state as usize] -= 1;
        self.requests.ended(&job);
        self.leave_sweep(&job);
        self.pool.unwant(&Needs::of(&job));
        self.short.leave(&job);
        self.checkpoints.remove_mut(&id);
        self.hashes.remove_mut(&id);
        self.deadlines.forget(Subject::Job(id));
        Some(job)
    }

    /// Sets a job's state alone.
    pub(in crate::core) fn move_job(&mut self, id: JobId, to: JobState) {
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
            self.enqueue(id, self.latest, self.latest);
        }
    }

    /// Gives a job its first ring, or its first one after it was queued again.
    pub(in crate::core) fn set_ring(&mut self, id: JobId, ring: Ring) {
        let ring = Arc::new(ring);
        self.seat(id, &ring);
        if let Some(job) = self.jobs.get_mut(&id).map(Arc::make_mut) {
            job.ring = Some(ring);
            self.short.enter(job);
            self.rings.enter(job);
        }
    }

    /// Changes a job's ring: who has a place in it, or what else of it is stored.
    pub(in crate::core) fn change_ring(&mut self, id: JobId, change: impl FnOnce(&mut Ring)) {
        let Some(job) = self.jobs.get_mut(&id).map(Arc::make_mut) else { return };
        self.short.leave(job);
        let Some(ring) = job.ring.as_mut() else { return };
        let before = ring.clone();
        change(Arc::make_mut(ring));
        let after = ring.clone();
        if self.short.enter(job) {
            self.placement_due = true;
        }
        let has_place = |worker| after.member(worker).is_some() || after.joiner(worker).is_some();
        let left = before.workers().filter(|worker| !has_place(*worker));
        left.for_each(|worker| self.seat_one(worker, None));
        self.seat(id, &after);
    }

    /// Takes a job's ring away.
    pub(in crate::core) fn take_ring(&mut self, id: JobId) -> Option<Arc<Ring>> {
        let job = self.jobs.get_mut(&id).map(Arc::make_mut)?;
        self.short.leave(job);
        self.rings.leave(job);
        let ring = job.ring.take()?;
        ring.workers().for_each(|worker| self.seat_one(worker, None));
        Some(ring)
    }

    fn seat(&mut self, job: JobId, ring: &Ring) {
        for (rank, member) in ring.present() {
            let rank = u32::try_from(rank).unwrap_or(u32::MAX);
            self.seat_one(member.worker, Some(RingPlace::Rank(job, rank)));
        }
        for joiner in &ring.joining {
            self.seat_one(joiner.member.worker, Some(RingPlace::Joins(job)));
        }
    }

    /// A worker, known or not, gets a place in a ring, or has none any more.
    fn seat_one(&mut self, id: WorkerId, place: Option<RingPlace>) {
        let place_before = self.places.get(&id).copied();
        let had_place = place_before.is_some();
        match place {
            Some(place) => self.places.insert_mut(id, place),
            None => drop(self.places.remove_mut(&id)),
        }
        let job_of = |place: Option<RingPlace>| place.map(RingPlace::job);
        if job_of(place_before) != job_of(place) {
            for (job, takes) in [(job_of(place_before), false), (job_of(place), true)] {
                let owner = job.and_then(|job| Some(self.jobs.get(&job)?.queue.clone()));
                owner.into_iter().for_each(|queue| self.hold(&queue.owner, takes));
            }
        }
        let Some(worker) = self.workers.get(&id) else { return };
        let (before, after) =
            (Availability::of(worker, had_place), Availability::of(worker, place.is_some()));
        if before != after {
            self.pool.moved(worker, before, after);
            self.placement_due = true;
        }
    }

    /// The state after a step of a job. The oldest ones are forgotten.
    pub(in crate::core) fn put_hash(&mut self, job: JobId, step: u64, state: ContentHash) {
        let mut hashes = self.hashes.get(&job).cloned().unwrap_or_default();
        hashes.insert_mut(step, state);
        if hashes.size() > self.options.hashes
            && let Some(oldest) = hashes.first().map(|(step, _)| *step)
        {
            hashes.remove_mut(&oldest);
        }
        self.hashes.insert_mut(job, hashes);
    }

    /// A worker said hello, for the first time or again.
    pub(in crate::core) fn insert_worker(&mut self, worker: Worker) {
        let has_place = self.places.contains_key(&worker.id);
        if let Some(before) = self.workers.get(&worker.id) {
            self.pool.leave(before, Availability::of(before, has_place));
        }
        self.pool.enter(&worker, Availability::of(&worker, has_place));
        self.workers.insert_mut(worker.id, Arc::new(worker));
        self.placement_due = true;
    }

    pub(in crate::core) fn remove_worker(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.get(&id) {
            let has_place = self.places.contains_key(&id);
            self.pool.leave(worker, Availability::of(worker, has_place));
            self.workers.remove_mut(&id);
            self.deadlines.forget(Subject::Worker(id));
        }
    }

    /// A checkpoint is there; one of the same step is replaced. Returns the job's newest one.
    pub(in crate::core) fn put_checkpoint(
        &mut self,
        job: JobId,
        checkpoint: Checkpoint,
    ) -> Option<Checkpoint> {
        let mut all = self.checkpoints.get(&job).cloned().unwrap_or_default();
        all.insert_mut((Reverse(checkpoint.step), checkpoint.recovery), checkpoint);
        let newest = all.first().map(|(_, newest)| *newest);
        self.checkpoints.insert_mut(job, all);
        newest
    }

    /// The checkpoint of this step is there no more, if it was. Returns the newest one that is left.
    pub(in crate::core) fn drop_checkpoint(
        &mut self,
        job: JobId,
        step: u64,
        recovery: bool,
    ) -> Option<Checkpoint> {
        let all = self.checkpoints.get_mut(&job)?;
        all.remove_mut(&(Reverse(step), recovery));
        let newest = all.first().map(|(_, newest)| *newest);
        if newest.is_none() {
            self.checkpoints.remove_mut(&job);
        }
        newest
    }

    /// Changes what a session does not fix of a worker. None: there is no such worker.
    pub(in crate::core) fn change_worker<T>(
        &mut self,
        id: WorkerId,
        change: impl FnOnce(&mut Worker) -> T,
    ) -> Option<T> {
        let has_place = self.places.contains_key(&id);
        let worker = Arc::make_mut(self.workers.get_mut(&id)?);
        let before = Availability::of(worker, has_place);
        let value = change(worker);
        let after = Availability::of(worker, has_place);
        if before != after {
            self.pool.moved(worker, before, after);
            self.placement_due = true;
        }
        Some(value)
    }

    /// A worker has loaded a model.
    pub(in crate::core) fn loaded(&mut self, id: WorkerId, model: String) {
        let Some(worker) = self.workers.get_mut(&id).map(Arc::make_mut) else { return };
        if worker.model.as_ref() != Some(&model) {
            self.pool.hold(worker, false);
            worker.model = Some(model);
            self.pool.hold(worker, true);
        }
    }

    /// Whether every index is what the jobs and workers say. For tests.
    ///
    /// # Errors
    /// The first one that is not, by name.
    pub fn check_indexes(&self) -> Result<(), String> {
        let mut other = Self::recover((*self.options).clone(), Recovered::default(), self.latest);
        self.jobs.values().for_each(|job| other.insert_job(job.clone()));
        self.workers.values().for_each(|worker| other.insert_worker((**worker).clone()));
        same("held ranks", &self.shares.holders(), &other.shares.holders())?;
        let owners: Vec<String> = other.queue.owners().map(|(owner, _)| owner.clone()).collect();
        owners.iter().for_each(|owner| other.queue.set_standing(owner, self.standing_of(owner)));
        same("counts", &self.job_counts, &other.job_counts)?;
        same("queue", &self.queue, &other.queue)?;
        same("pool", &self.pool.counts(), &other.pool.counts())?;
        same("places", &self.places, &other.places)?;
        same("rings", &self.rings, &other.rings)?;
        same("short rings", &self.short, &other.short)?;
        same("sweeps", &self.sweeps, &other.sweeps)?;
        for job in self.jobs.values() {
            let newest = self.checkpoints.get(&job.id).and_then(|all| all.first()).map(|(_, newest)| *newest);
            same("newest checkpoint", &job.checkpoint, &newest)?;
        }
        let others =
            self.checkpoints.iter().find(|(job, all)| all.is_empty() || !self.jobs.contains_key(*job));
        same("checkpoints of no job", &others.map(|(job, _)| *job), &None)
    }
}

/// By their entries: two maps of the same entries may differ in shape.
fn same<T: PartialEq + Debug>(what: &str, mine: &T, others: &T) -> Result<(), String> {
    if mine == others { Ok(()) } else { Err(format!("{what}: {mine:?}, but it should be {others:?}")) }
}
