//! Files of jobs come and go.

use ringtune_shared::checkpoint::{is_recovery_name, step_of_name, step_of_recovery_name};
use ringtune_shared::ids::{Epoch, JobId};

use super::Turn;
use crate::core::effect::Write;
use crate::core::job::Job;
use crate::core::record::{ArtifactRecord, EventBody};
use crate::core::refusal::Refusal;

impl Turn<'_> {
    /// [`Job::check_epoch`] of a job that has not ended.
    pub(super) fn check_epoch(&self, id: JobId, given: Option<Epoch>) -> Result<(), Refusal> {
        self.cluster.jobs.get(&id).ok_or(Refusal::NotActive(id))?.check_epoch(given)
    }

    /// Lists a complete file with its job.
    pub(super) fn keep_artifact(&mut self, mut artifact: ArtifactRecord) -> Result<(), Refusal> {
        let limit = self.cluster.options.artifacts_per_job;
        artifact.created = self.now;
        let id = artifact.job;
        let job = self.cluster.jobs.get(&id).ok_or(Refusal::NotActive(id))?;
        let is_users = !is_recovery_name(&artifact.name);
        if is_users {
            if job.artifacts >= limit {
                return Err(Refusal::TooManyArtifacts { limit });
            }
            if let Some(job) = self.progress_mut(id) {
                job.artifacts += 1;
            }
        }
        if let Some(checkpoint) = artifact.checkpoint() {
            let newest = self.cluster.put_checkpoint(id, checkpoint);
            self.set_newest(id, newest);
        } else if let Some(step) = step_of_name(&artifact.name) {
            // A user put something else in a checkpoint's place: nobody vouches for it.
            self.forget_checkpoint(id, step, false);
        }
        self.effects.writes.push(Write::PutArtifact(artifact.clone()));
        if is_users {
            self.record(id, EventBody::Artifact(artifact));
        } else if let Some(step) = step_of_recovery_name(&artifact.name) {
            // This one is whole, and stored together with the end of those before it.
            self.drop_recovery_points(id, step);
        }
        Ok(())
    }

    /// Takes a file that a job has off its list.
    pub(super) fn drop_artifact(&mut self, id: JobId, name: String) -> Result<(), Refusal> {
        let job = self.progress_mut(id).ok_or(Refusal::NotActive(id))?;
        if !is_recovery_name(&name) {
            job.artifacts = job.artifacts.saturating_sub(1);
        }
        if let Some(step) = step_of_name(&name) {
            self.forget_checkpoint(id, step, false);
        } else if let Some(step) = step_of_recovery_name(&name) {
            self.forget_checkpoint(id, step, true);
        }
        self.effects.writes.push(Write::DropArtifact(id, name));
        Ok(())
    }

    /// Takes the recovery points of earlier steps than this one off a job.
    pub(super) fn drop_recovery_points(&mut self, id: JobId, before: u64) {
        let points = self.cluster.checkpoints(id).filter(|one| one.recovery && one.step < before);
        for point in points.copied().collect::<Vec<_>>() {
            self.forget_checkpoint(id, point.step, true);
            self.effects.writes.push(Write::DropArtifact(id, point.name()));
        }
    }

    fn forget_checkpoint(&mut self, id: JobId, step: u64, recovery: bool) {
        let newest = self.cluster.drop_checkpoint(id, step, recovery);
        self.set_newest(id, newest);
    }

    fn set_newest(&mut self, id: JobId, newest: Option<crate::core::Checkpoint>) {
        let differs = |job: &Job| job.checkpoint != newest;
        if self.cluster.jobs.get(&id).is_some_and(|job| differs(job))
            && let Some(job) = self.job_mut(id)
        {
            job.checkpoint = newest;
        }
    }
}

#[cfg(test)]
mod tests;
