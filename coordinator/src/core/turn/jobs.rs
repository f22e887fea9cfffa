//! What users ask for: create, cancel, pause and resume.

use std::collections::BTreeSet;
use std::sync::Arc;

use ringtune_shared::ids::JobId;

use super::Turn;
use crate::core::effect::Write;
use crate::core::input::{NewJob, NewVerification};
use crate::core::job::Job;
use crate::core::job_state::JobState;
use crate::core::links::Links;
use crate::core::needs::{Abilities, Needs};
use crate::core::pin::Pin;
use crate::core::record::{EventBody, JobEvent, LogLevel};
use crate::core::refusal::Refusal;
use crate::core::scheduler::choose_class;
use crate::core::stop::Goal;
use crate::core::time::Time;
use crate::core::verification::Verification;
use crate::core::waiting::problem;

/// Different constraints of active jobs: each costs something whenever a worker becomes free.
const MOST_NEEDS: usize = 256;
/// Labels in a message.
const MOST_SHOWN: usize = 20;

impl Turn<'_> {
    /// Queues a job, unless the same request did so before: then that job is the answer.
    pub(super) fn create_job(&mut self, new: NewJob) -> Result<JobId, Refusal> {
        self.queue_new(vec![new], None)
    }

    /// As above, for a verification.
    pub(super) fn verify_job(&mut self, new: NewVerification) -> Result<JobId, Refusal> {
        self.queue_new(vec![new.job], Some((new.verification, new.pin)))
    }

    /// Queues all of these jobs of one owner or none, unless the request of the first did so before; gives the first. `again`: what
    /// they compute again, and what that was computed on.
    pub(super) fn queue_new(
        &mut self,
        news: Vec<NewJob>,
        again: Option<(Verification, Arc<Pin>)>,
    ) -> Result<JobId, Refusal> {
        // 1. Is it there already, and is there room for it?
        let Some(first) = news.first() else { return Err(Refusal::EmptySweep) };
        let (id, count) = (first.id, news.len());
        if let Some(request) = &first.request {
            match self.cluster.requests.find(request) {
                Some((job, true)) => return Ok(job),
                Some((job, false)) => {
                    return Err(Refusal::RequestReused { request_id: request.id.clone(), job });
                }
                None => {}
            }
        }
        let limits = self.cluster.options.limits;
        let (owner, limit) = (&first.queue.owner, limits.owner_queued_jobs);
        let load = self.cluster.load_of(owner);
        if load.queued_of_all + count > limits.queued_jobs {
            return Err(Refusal::QueueFull { limit: limits.queued_jobs });
        }
        if limit > 0 && load.queued + count > limit {
            return Err(Refusal::OwnerQueueFull { owner: owner.clone(), limit });
        }
        let needed = news.iter().map(|new| new.spec.common.cluster.min_world_size).max().unwrap_or_default();
        let ranks = limits.owner_ranks;
        if ranks > 0 && again.is_none() && needed > ranks {
            return Err(Refusal::TooManyRanks { needed, limit: ranks });
        }
        // 2. Could they run?
        let jobs: Vec<Job> = news.into_iter().map(|new| self.new_job(new, again.clone())).collect();
        self.check_needs(&jobs)?;
        // 3. They are queued.
        jobs.into_iter().for_each(|job| self.enqueue_new(job));
        Ok(id)
    }

    fn new_job(&self, new: NewJob, again: Option<(Verification, Arc<Pin>)>) -> Job {
        let (verification, pin) = again.unzip();
        Job {
            id: new.id,
            number: 0,
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
            validation: None,
            sweep: new.sweep.map(Arc::new),
            last_sequence: 1,
            artifacts: 0,
            rings: 0,
            tries: 0,
            errors: 0,
            ring: None,
            pin,
            stop: None,
            checkpoint: None,
            verification,
            trace: new.trace,
            refused_by: BTreeSet::new(),
            links: Links::default(),
            refusals: 0,
            waits_behind: false,
            wait: None,
            orders: Arc::default(),
            preempted: false,
            waits_since: Time::default(),
            overdue: false,
        }
    }

    fn enqueue_new(&mut self, mut job: Job) {
        self.cluster.last_number += 1;
        job.number = self.cluster.last_number;
        // What it waits for at first. Later on that is computed when somebody asks.
        job.reason = match choose_class(&problem(&job), &self.cluster.open_to(&job)) {
            Ok(_) => "submitted".to_owned(),
            Err(missing) => missing,
        };
        let body = EventBody::StateChange { from: None, to: JobState::Queued, reason: job.reason.clone() };
        let event = JobEvent { job: job.id, sequence: job.last_sequence, time: self.now, body };
        let job = Arc::new(job);
        self.effects.writes.extend([Write::InsertJob(job.clone()), Write::AppendEvent(event)]);
        self.cluster.insert_job(job);
    }

    /// Refuses jobs of which one would wait for ever, as no worker that is known could take it.
    fn check_needs(&self, jobs: &[Job]) -> Result<(), Refusal> {
        let all: BTreeSet<Needs> = jobs.iter().map(Needs::of).collect();
        let room = |needs| self.cluster.pool.has_room_for(needs, (MOST_NEEDS + 1).saturating_sub(all.len()));
        if !all.iter().all(room) {
            return Err(Refusal::TooManyNeeds { limit: MOST_NEEDS });
        }
        all.iter().try_for_each(|needs| self.check_constraints(needs))
    }

    fn check_constraints(&self, needs: &Needs) -> Result<(), Refusal> {
        let Some(constraints) = needs.constraints() else { return Ok(()) };
        let known = || self.cluster.workers().map(|worker| Abilities::of(worker));
        let is_met = known().any(|abilities| needs.are_met(&abilities));
        if !is_met && known().next().is_some() && self.cluster.knows_workers_from <= self.now {
            let labels = known().flat_map(|abilities| abilities.capabilities.labels.clone());
            let labels: BTreeSet<String> = labels.map(|(key, value)| format!("{key}={value}")).collect();
            let shown: Vec<String> = labels.into_iter().take(MOST_SHOWN).collect();
            let known = match shown.is_empty() {
                true => "no worker has labels (worker.labels)".to_owned(),
                false => format!("labels that workers have: {}", shown.join(", ")),
            };
            return Err(Refusal::NobodyFits { constraints, known });
        }
        Ok(())
    }

    /// A queued job ends at once; an active one when its ranks stopped or their time is over.
    /// Asking again changes nothing.
    pub(super) fn cancel_job(&mut self, id: JobId, reason: &str) -> Result<(), Refusal> {
        let reason = self.cut(reason);
        let said = if reason.is_empty() { "cancelled by request".to_owned() } else { reason };
        // That its sweep has no place for it is not why it ends.
        self.forget_score(id);
        self.give_up(id, said)
    }

    /// Cancels a job, for a reason in words.
    pub(super) fn give_up(&mut self, id: JobId, said: String) -> Result<(), Refusal> {
        let Some(job) = self.cluster.jobs.get(&id) else { return Err(Refusal::NotActive(id)) };
        if job.stop.as_ref().is_some_and(|stop| stop.goal.state() == JobState::Cancelled) {
            return Ok(());
        }
        let goal = Goal::Cancelled { reason: said.clone() };
        if job.ring.is_none() {
            self.reach(id, &goal);
            return Ok(());
        }
        if let Some(job) = self.job_mut(id) {
            job.reason = format!("cancelling: {said}");
        }
        self.record(id, EventBody::note(LogLevel::Info, format!("cancel requested: {said}")));
        self.stop_job(id, goal);
        Ok(())
    }

    /// A job that waits is paused at once; one that runs after a step, with the state after that. Asking again changes
    /// nothing.
    pub(super) fn pause_job(&mut self, id: JobId) -> Result<(), Refusal> {
        let Some(job) = self.cluster.jobs.get(&id).cloned() else { return Err(Refusal::NotActive(id)) };
        if job.stop.as_ref().is_some_and(|stop| stop.goal.state() != JobState::Queued) {
            return Err(Refusal::AboutToEnd(id));
        }
        if job.state == JobState::Paused || job.pauses() {
            return Ok(());
        }
        let Some(ring) = &job.ring else {
            self.set_state(id, JobState::Paused, job.why_it_pauses());
            return Ok(());
        };
        if job.state == JobState::Running && !ring.reforms() {
            return Err(Refusal::CannotPause(id));
        }
        self.change_ring(id, |ring| ring.pauses = true);
        if let Some(job) = self.job_mut(id) {
            job.reason = "pausing".to_owned();
        }
        let said = if job.is_at_rung() { job.why_it_pauses() } else { "pause requested".to_owned() };
        self.record(id, EventBody::note(LogLevel::Info, said));
        if job.state == JobState::Running {
            self.look_at_ring(id);
            return Ok(());
        }
        if let Some(job) = self.job_mut(id) {
            // Nobody failed: it counts as no try.
            job.tries = job.tries.saturating_sub(1);
        }
        self.stop_job(id, Goal::queued(job.why_it_pauses()));
        Ok(())
    }

    /// A paused job waits for workers again. One that was to be paused goes on, if its ranks were not told to stop yet. Asking
    /// again changes nothing.
    pub(super) fn resume_job(&mut self, id: JobId) -> Result<(), Refusal> {
        let Some(job) = self.cluster.jobs.get(&id).cloned() else { return Err(Refusal::NotActive(id)) };
        if job.is_at_rung() {
            return Err(Refusal::WaitsForSweep(id));
        }
        if job.state == JobState::Paused {
            self.set_state(id, JobState::Queued, "resumed".to_owned());
        } else if job.pauses() {
            self.change_ring(id, |ring| ring.pauses = false);
            if let Some(job) = self.job_mut(id) {
                job.reason = "resuming".to_owned();
            }
            self.record(id, EventBody::note(LogLevel::Info, "resume requested"));
        }
        Ok(())
    }
}
