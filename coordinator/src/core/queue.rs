//! The queue: jobs by the numerics class that they are bound to, if they are, by the fewest workers that they start on, and
//! within that by age.

use ringtune_shared::ids::JobId;

use super::job::Job;
use super::pool::Pool;
use super::shared_map::SharedMap;

/// Jobs that wait for a ring.
///
/// Invariant: a job's pin does not change while it is queued, as it is found again by it.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue {
    /// Jobs that any class will do for.
    open: Sizes,
    /// Jobs that have begun on a ring before, by its class. Classes are few.
    pinned: SharedMap<String, Sizes>,
}

/// By min_world_size, then by number. There are few sizes, however many jobs there are.
#[derive(Debug, Clone, Default)]
struct Sizes(SharedMap<u32, SharedMap<u64, JobId>>);

impl Queue {
    pub(super) fn insert(&mut self, job: &Job) {
        let Some(pin) = &job.pin else { return self.open.insert(job) };
        if !self.pinned.contains_key(&pin.numerics_class) {
            self.pinned.insert(pin.numerics_class.clone(), Sizes::default());
        }
        if let Some(sizes) = self.pinned.get_mut(&pin.numerics_class) {
            sizes.insert(job);
        }
    }

    pub(super) fn remove(&mut self, job: &Job) {
        let Some(pin) = &job.pin else { return self.open.remove(job) };
        let Some(sizes) = self.pinned.get_mut(&pin.numerics_class) else { return };
        sizes.remove(job);
        if sizes.0.is_empty() {
            self.pinned.remove(&pin.numerics_class);
        }
    }

    /// The oldest job that could start if no worker of `pool` had a rank, with its number.
    pub(super) fn oldest_fitting(&self, pool: &Pool) -> Option<(u64, JobId)> {
        let open = self.open.oldest_fitting(pool.largest_class());
        let pinned =
            self.pinned.iter().filter_map(|(class, sizes)| sizes.oldest_fitting(pool.usable_of(class)));
        pinned.chain(open).min()
    }
}

impl Sizes {
    fn insert(&mut self, job: &Job) {
        let size = job.spec.common.cluster.min_world_size;
        if !self.0.contains_key(&size) {
            self.0.insert(size, SharedMap::default());
        }
        if let Some(jobs) = self.0.get_mut(&size) {
            jobs.insert(job.number, job.id);
        }
    }

    fn remove(&mut self, job: &Job) {
        let size = job.spec.common.cluster.min_world_size;
        let Some(jobs) = self.0.get_mut(&size) else { return };
        jobs.remove(&job.number);
        if jobs.is_empty() {
            self.0.remove(&size);
        }
    }

    /// The oldest job that could start on so many workers.
    fn oldest_fitting(&self, workers: usize) -> Option<(u64, JobId)> {
        let fitting = self.0.iter().take_while(|(size, _)| **size as usize <= workers);
        fitting.filter_map(|(_, jobs)| jobs.first()).map(|(number, id)| (*number, *id)).min()
    }
}
