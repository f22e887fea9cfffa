//! One turn of the core: one input, and everything that follows from it.

mod jobs;
mod placement;
mod ranks;
mod sessions;
mod ticks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringtune_shared::ids::{Epoch, JobId, WorkerId};

use super::cluster::Cluster;
use super::effect::{Action, Down, Effects, Refusal, Write};
use super::input::Input;
use super::job::{Job, JobState};
use super::reason::Failure;
use super::record::{EventBody, JobEvent};
use super::time::Time;
use super::worker::Worker;

/// The state, the time, and what came of the input so far.
pub(super) struct Turn<'a> {
    cluster: &'a mut Cluster,
    now: Time,
    effects: Effects,
    /// Jobs whose rows are to be written, but for new ones.
    changed: BTreeSet<JobId>,
    /// Jobs that ended in this turn.
    ended: BTreeMap<JobId, Arc<Job>>,
}

impl<'a> Turn<'a> {
    pub(super) fn new(cluster: &'a mut Cluster, now: Time) -> Self {
        Self { cluster, now, effects: Effects::default(), changed: BTreeSet::new(), ended: BTreeMap::new() }
    }

    /// Takes in `input`, then forms the rings that can be formed.
    pub(super) fn run(mut self, input: Input) -> Result<Effects, Refusal> {
        let mut about = None;
        match input {
            Input::CreateJob(new) => about = Some(self.create_job(new)?),
            Input::CancelJob { job, reason } => {
                self.cancel_job(job, &reason)?;
                about = Some(job);
            }
            Input::KeepArtifact { artifact, epoch } => {
                self.check_epoch(artifact.job, epoch)?;
                self.keep_artifact(artifact)?;
            }
            Input::DropArtifact { job, name, epoch } => {
                self.check_epoch(job, epoch)?;
                self.drop_artifact(job, name)?;
            }
            Input::Hello { session, hello } => self.hello(session, hello)?,
            Input::SessionEnded(sender) => self.session_ended(sender),
            Input::Heartbeat(sender, held) => self.heartbeat(sender, held)?,
            Input::RankReport(sender, report) => self.rank_report(sender, report)?,
            Input::RankStep(sender, job, epoch, step) => self.rank_step(sender, job, epoch, step)?,
            Input::RankLog { sender, job, epoch, level, message } => {
                self.rank_log(sender, (job, epoch), level, &message)?;
            }
            Input::Tick => self.tick(),
        }
        if self.cluster.placement_due {
            self.place_queued_jobs();
        }
        Ok(self.finish(about))
    }

    fn finish(mut self, about: Option<JobId>) -> Effects {
        for id in &self.changed {
            if let Some(job) = self.ended.get(id).or_else(|| self.cluster.jobs.get(id)) {
                self.effects.writes.push(Write::UpdateJob(job.clone()));
            }
        }
        let find = |id| self.ended.get(&id).or_else(|| self.cluster.jobs.get(&id)).cloned();
        self.effects.job = about.and_then(find);
        self.effects
    }

    /// The job to change; its row will be written.
    fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        let job = Arc::make_mut(self.cluster.jobs.get_mut(&id)?);
        job.updated = self.now;
        self.changed.insert(id);
        Some(job)
    }

    fn worker_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.cluster.workers.get_mut(&id).map(Arc::make_mut)
    }

    /// Appends an event to a job's history.
    fn record(&mut self, id: JobId, body: EventBody) {
        let time = self.now;
        let Some(job) = self.job_mut(id) else { return };
        job.last_sequence += 1;
        let event = JobEvent { job: id, sequence: job.last_sequence, time, body };
        self.effects.writes.push(Write::AppendEvent(event));
    }

    /// Moves a job along the transition table of [`JobState`].
    fn set_state(&mut self, id: JobId, to: JobState, reason: String) {
        let now = self.now;
        let Some(job) = self.job_mut(id) else { return };
        let from = job.state;
        if !from.may_become(to) {
            debug_assert!(false, "a job cannot go from {from} to {to}");
            return;
        }
        job.state = to;
        job.reason.clone_from(&reason);
        if from == JobState::Queued && to == JobState::Preparing {
            job.started = Some(now);
        }
        if to.is_terminal() {
            job.ended = Some(now);
        }
        self.record(id, EventBody::StateChange { from: Some(from), to, reason });
    }

    /// Ends a job that failed.
    fn fail_job(&mut self, id: JobId, failure: Failure, reason: &str) {
        if let Some(job) = self.job_mut(id) {
            job.failure = Some(failure);
        }
        self.end_job(id, JobState::Failed, reason);
    }

    /// Ends a job and lets all its ranks go.
    fn end_job(&mut self, id: JobId, to: JobState, reason: &str) {
        let reason = self.cut(reason);
        let ring = self.job_mut(id).and_then(|job| {
            job.cancel = None;
            job.finish_by = None;
            job.ring.take()
        });
        self.set_state(id, to, reason.clone());
        for member in ring.iter().flat_map(|ring| &ring.members) {
            let epoch = ring.as_ref().map_or(Epoch::FIRST, |ring| ring.epoch);
            if let Some(worker) = self.worker_mut(member.worker) {
                worker.rank = None;
                self.release(member.worker, id, epoch, &reason);
            }
        }
        if let Some(job) = self.cluster.jobs.remove(&id) {
            self.ended.insert(id, job);
        }
        self.cluster.placement_due = true;
    }

    /// Tells a worker to let a rank go that is no longer wanted. It gets no other rank before it did.
    fn release(&mut self, worker: WorkerId, job: JobId, epoch: Epoch, reason: &str) {
        if let Some(worker) = self.worker_mut(worker) {
            worker.releasing.insert((job, epoch));
        }
        let reason = reason.to_owned();
        self.tell(worker, Down::StopRank { job, epoch, reason, keep_artifacts: false });
    }

    /// Says something to a worker if it is connected; if not, its next hello sorts it out.
    fn tell(&mut self, worker: WorkerId, message: Down) {
        if let Some(session) = self.cluster.workers.get(&worker).and_then(|worker| worker.session) {
            self.effects.actions.push(Action::Send(session, message));
        }
    }

    /// Cuts a text from outside to the length that is kept.
    fn cut(&self, text: &str) -> String {
        text.chars().take(self.cluster.options.text_length).collect()
    }
}
