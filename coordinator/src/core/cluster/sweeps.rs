//! The jobs of each sweep that have not ended.

use ringtune_shared::ids::SweepId;

use super::Cluster;
use crate::core::SharedSet;
use crate::core::job::Job;

impl Cluster {
    /// The jobs of a sweep that have not ended.
    pub(in crate::core) fn jobs_of_sweep(&self, sweep: SweepId) -> impl Iterator<Item = &Job> {
        let jobs = self.sweeps.get(&sweep).into_iter().flat_map(SharedSet::iter);
        jobs.filter_map(|id| self.jobs.get(id)).map(|job| &**job)
    }

    /// Takes up a job of a sweep.
    pub(super) fn enter_sweep(&mut self, job: &Job) {
        let Some(place) = &job.sweep else { return };
        let mut jobs = self.sweeps.get(&place.sweep).cloned().unwrap_or_default();
        jobs.insert_mut(job.id);
        self.sweeps.insert_mut(place.sweep, jobs);
    }

    /// A job of a sweep has ended.
    pub(super) fn leave_sweep(&mut self, job: &Job) {
        let Some(place) = &job.sweep else { return };
        let Some(mut jobs) = self.sweeps.get(&place.sweep).cloned() else { return };
        jobs.remove_mut(&job.id);
        match jobs.is_empty() {
            true => drop(self.sweeps.remove_mut(&place.sweep)),
            false => self.sweeps.insert_mut(place.sweep, jobs),
        }
    }
}
