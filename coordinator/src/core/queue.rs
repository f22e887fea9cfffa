//! The queue: jobs by the fewest workers that they start on, and within that by age.

use ringtune_shared::ids::JobId;

use super::job::Job;
use super::shared_map::SharedMap;

/// Jobs that wait for a ring.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue {
    /// By min_world_size, then by number. There are few sizes, however many jobs there are.
    sizes: SharedMap<u32, SharedMap<u64, JobId>>,
}

impl Queue {
    pub(super) fn insert(&mut self, job: &Job) {
        let size = job.spec.common.cluster.min_world_size;
        if !self.sizes.contains_key(&size) {
            self.sizes.insert(size, SharedMap::default());
        }
        if let Some(jobs) = self.sizes.get_mut(&size) {
            jobs.insert(job.number, job.id);
        }
    }

    pub(super) fn remove(&mut self, job: &Job) {
        let size = job.spec.common.cluster.min_world_size;
        let Some(jobs) = self.sizes.get_mut(&size) else { return };
        jobs.remove(&job.number);
        if jobs.is_empty() {
            self.sizes.remove(&size);
        }
    }

    /// The oldest job that could start on `workers` of one class, with its number.
    pub(super) fn oldest_fitting(&self, workers: usize) -> Option<(u64, JobId)> {
        let fitting = self.sizes.iter().take_while(|(size, _)| **size as usize <= workers);
        fitting.filter_map(|(_, jobs)| jobs.first()).map(|(number, id)| (*number, *id)).min()
    }
}
