//! What users ask for: create, cancel, keep a file.

use std::sync::Arc;

use ringtune_shared::ids::JobId;

use super::Turn;
use crate::core::deadlines::Subject;
use crate::core::effect::{Down, Refusal, Write};
use crate::core::input::NewJob;
use crate::core::job::{Cancel, Job, JobState};
use crate::core::record::{ArtifactRecord, EventBody, JobEvent, LogLevel};
use crate::core::scheduler::choose_class;
use crate::core::waiting::problem;

impl Turn<'_> {
    /// Queues a job, unless the same request did so before: then that job is the answer.
    pub(super) fn create_job(&mut self, new: NewJob) -> Result<JobId, Refusal> {
        if let Some(request) = &new.request {
            match self.cluster.requests.find(request) {
                Some((job, true)) => return Ok(job),
                Some((job, false)) => {
                    return Err(Refusal::RequestReused { request_id: request.id.clone(), job });
                }
                None => {}
            }
        }
        let limit = self.cluster.options.queued_jobs;
        if self.cluster.count_jobs(JobState::Queued) >= limit {
            return Err(Refusal::QueueFull { limit });
        }
        self.cluster.last_number += 1;
        let mut job = Job {
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
            last_sequence: 1,
            artifacts: 0,
            rings: 0,
            ring: None,
            precision: None,
            cancel: None,
            finish_by: None,
            waits_behind: false,
        };
        // What it waits for at first. Later on that is computed when somebody asks.
        job.reason = match choose_class(&problem(&job), &self.cluster.pool) {
            Ok(_) => "submitted".to_owned(),
            Err(missing) => missing,
        };
        let body = EventBody::StateChange { from: None, to: JobState::Queued, reason: job.reason.clone() };
        let event = JobEvent { job: job.id, sequence: job.last_sequence, time: self.now, body };
        let job = Arc::new(job);
        self.effects.writes.extend([Write::InsertJob(job.clone()), Write::AppendEvent(event)]);
        self.cluster.insert_job(job);
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
        self.cluster.deadlines.by(Subject::Job(id), deadline);
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
        let job = self.progress_mut(id).ok_or(Refusal::NotActive(id))?;
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
        if let Some(job) = self.progress_mut(id) {
            job.artifacts += 1;
        }
        self.effects.writes.push(Write::PutArtifact(artifact.clone()));
        self.record(id, EventBody::Artifact(artifact));
        Ok(())
    }
}
