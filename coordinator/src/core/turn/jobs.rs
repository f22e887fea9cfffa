//! What users ask for: create, cancel, keep a file.

use std::sync::Arc;

use ringtune_shared::ids::JobId;

use super::Turn;
use crate::core::effect::{Down, Refusal, Write};
use crate::core::input::NewJob;
use crate::core::job::{Cancel, Job, JobState};
use crate::core::record::{ArtifactRecord, EventBody, LogLevel};

impl Turn<'_> {
    /// Queues a job, unless the same request did so before: then that job is the answer.
    pub(super) fn create_job(&mut self, new: NewJob) -> Result<JobId, Refusal> {
        if let Some(request) = &new.request {
            let same_id = |job: &&Arc<Job>| job.request.as_ref().is_some_and(|known| known.id == request.id);
            if let Some(job) = self.cluster.jobs.values().find(same_id) {
                return if job.request.as_ref() == Some(request) {
                    Ok(job.id)
                } else {
                    Err(Refusal::RequestReused { request_id: request.id.clone(), job: job.id })
                };
            }
        }
        let limit = self.cluster.options.queued_jobs;
        if self.cluster.count_jobs(JobState::Queued) >= limit {
            return Err(Refusal::QueueFull { limit });
        }
        self.cluster.last_number += 1;
        let job = Arc::new(Job {
            id: new.id,
            number: self.cluster.last_number,
            spec: new.spec,
            queue: new.queue,
            request: new.request,
            step: new.resumed.as_ref().map_or(0, |resumed| resumed.step),
            resumed: new.resumed,
            state: JobState::Queued,
            reason: String::new(),
            failure: None,
            created: self.now,
            updated: self.now,
            started: None,
            ended: None,
            loss: None,
            last_sequence: 0,
            artifacts: 0,
            ring: None,
            precision: None,
            cancel: None,
            finish_by: None,
        });
        self.effects.writes.push(Write::InsertJob(job.clone()));
        self.cluster.jobs.insert(new.id, job);
        let reason = self.first_reason(new.id);
        self.record(new.id, EventBody::StateChange { from: None, to: JobState::Queued, reason });
        self.cluster.placement_due = true;
        Ok(new.id)
    }

    /// A queued job ends at once; an active one when its ranks stopped or their time is over.
    /// Asking again changes nothing.
    pub(super) fn cancel_job(&mut self, id: JobId, reason: &str) -> Result<(), Refusal> {
        let deadline = self.now.plus(self.cluster.options.cancel);
        let reason = self.cut(reason);
        let said = if reason.is_empty() { "cancelled by request".to_owned() } else { reason.clone() };
        let Some(job) = self.cluster.jobs.get(&id) else { return Err(Refusal::NotActive(id)) };
        if job.cancel.is_some() {
            return Ok(());
        }
        let Some(ring) = job.ring.clone() else {
            self.end_job(id, JobState::Cancelled, &said);
            return Ok(());
        };
        if let Some(job) = self.job_mut(id) {
            job.cancel = Some(Cancel { reason: said.clone(), deadline });
            job.reason = format!("cancelling: {said}");
        }
        self.record(id, EventBody::note(LogLevel::Info, format!("cancel requested: {said}")));
        for member in &ring.members {
            let reason = said.clone();
            self.tell(
                member.worker,
                Down::StopRank { job: id, epoch: ring.epoch, reason, keep_artifacts: true },
            );
        }
        self.advance(id);
        Ok(())
    }

    /// Takes a file that a job has off its list.
    pub(super) fn drop_artifact(&mut self, id: JobId, name: String) -> Result<(), Refusal> {
        let job = self.job_mut(id).ok_or(Refusal::NotActive(id))?;
        job.artifacts = job.artifacts.saturating_sub(1);
        self.effects.writes.push(Write::DropArtifact(id, name));
        Ok(())
    }

    /// Lists a complete file with its job.
    pub(super) fn keep_artifact(&mut self, mut artifact: ArtifactRecord) -> Result<(), Refusal> {
        let limit = self.cluster.options.artifacts_per_job;
        artifact.created = self.now;
        let id = artifact.job;
        let job = self.cluster.jobs.get(&id).ok_or(Refusal::NotActive(id))?;
        if job.artifacts >= limit {
            return Err(Refusal::TooManyArtifacts { limit });
        }
        if let Some(job) = self.job_mut(id) {
            job.artifacts += 1;
        }
        self.effects.writes.push(Write::PutArtifact(artifact.clone()));
        self.record(id, EventBody::Artifact(artifact));
        Ok(())
    }
}
