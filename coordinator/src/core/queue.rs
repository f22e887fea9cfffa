//! The queue: jobs by the numerics class that they are bound to, if they are, by the fewest workers that they start on, and
//! within that by age.

use ringtune_shared::ids::JobId;

use super::SharedMap;
use super::job::Job;
use super::pool::Pool;

/// Jobs that wait for a ring.
///
/// Invariant: a job's pin does not change while it is queued, as it is found again by it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Queue {
    /// Jobs that any class will do for.
    open: Sizes,
    /// Jobs that are bound to a class, by that and by whether they verify. Classes are few.
    pinned: SharedMap<(String, bool), Sizes>,
}

/// By min_world_size, then by number. There are few sizes, however many jobs there are.
#[derive(Debug, Clone, Default, PartialEq)]
struct Sizes(SharedMap<u32, SharedMap<u64, JobId>>);

impl Queue {
    pub(super) fn insert(&mut self, job: &Job) {
        let Some(place) = place(job) else { return self.open.insert(job) };
        let mut sizes = self.pinned.get(&place).cloned().unwrap_or_default();
        sizes.insert(job);
        self.pinned.insert_mut(place, sizes);
    }

    pub(super) fn remove(&mut self, job: &Job) {
        let Some(place) = place(job) else { return self.open.remove(job) };
        let Some(sizes) = self.pinned.get_mut(&place) else { return };
        sizes.remove(job);
        if sizes.0.is_empty() {
            self.pinned.remove_mut(&place);
        }
    }

    /// The oldest job behind the one with the number `last` that could start on one of these classes if none of its workers
    /// had a rank, with its number. `asked`: of whom alone.
    pub(super) fn oldest_fitting(
        &self,
        pool: &Pool,
        wanted: impl Fn(&str) -> bool,
        asked: impl Fn(&JobId) -> bool,
        last: u64,
    ) -> Option<(u64, JobId)> {
        let open = self.open.oldest_fitting(pool.largest_class(&wanted), &asked, last);
        let pinned = self.pinned.iter().filter(|((class, _), _)| wanted(class));
        let pinned = pinned.filter_map(|((class, verifies), sizes)| {
            sizes.oldest_fitting(pool.usable_of(class, *verifies), &asked, last)
        });
        pinned.chain(open).min()
    }
}

/// Where a job stands that is bound to a class.
fn place(job: &Job) -> Option<(String, bool)> {
    Some((job.pin.as_ref()?.numerics_class.clone(), job.verification.is_some()))
}

impl Sizes {
    fn insert(&mut self, job: &Job) {
        let (_, size) = job.ranks();
        let mut jobs = self.0.get(&size).cloned().unwrap_or_default();
        jobs.insert_mut(job.number, job.id);
        self.0.insert_mut(size, jobs);
    }

    fn remove(&mut self, job: &Job) {
        let (_, size) = job.ranks();
        let Some(jobs) = self.0.get_mut(&size) else { return };
        jobs.remove_mut(&job.number);
        if jobs.is_empty() {
            self.0.remove_mut(&size);
        }
    }

    /// The oldest job behind `last` that could start on so many workers. Of those before it that could, few are left: see
    /// [`super::queue_walk`].
    fn oldest_fitting(
        &self,
        workers: usize,
        asked: impl Fn(&JobId) -> bool,
        last: u64,
    ) -> Option<(u64, JobId)> {
        let fitting = self.0.iter().take_while(|(size, _)| **size as usize <= workers);
        let behind = |jobs: &SharedMap<u64, JobId>| {
            let found = jobs.iter().find(|(number, id)| **number > last && asked(id));
            found.map(|(number, id)| (*number, *id))
        };
        fitting.filter_map(|(_, jobs)| behind(jobs)).min()
    }
}
