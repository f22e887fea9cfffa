//! One turn of the core: one input, and everything that follows from it.

mod artifacts;
mod drains;
mod evictions;
mod jobs;
mod joiners;
mod links;
mod losses;
mod orders;
mod placement;
mod preemption;
mod ranks;
mod reforms;
mod sessions;
mod stops;
mod sweeps;
mod ticks;
mod verification;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringtune_shared::ids::{Epoch, JobId, SweepId, WorkerId};

use super::cluster::{Cluster, Want};
use super::effect::{Action, Down, Effects, Write};
use super::input::Input;
use super::job::{Job, Ring};
use super::job_state::JobState;
use super::record::{EventBody, JobEvent};
use super::refusal::Refusal;
use super::time::Time;

impl Cluster {
    /// Takes in one input. Rings are formed by [`Cluster::place`].
    ///
    /// # Errors
    /// A [`Refusal`] leaves the state as it was.
    pub fn apply(&mut self, input: Input, now: Time) -> Result<Effects, Refusal> {
        Turn::new(self, now).run(input)
    }

    /// Gives free workers to queued jobs, if anything changed that may let one start. Once after many inputs is enough.
    pub fn place(&mut self, now: Time) -> Effects {
        Turn::new(self, now).place()
    }
}

/// The state, the time, and what came of the input so far.
struct Turn<'a> {
    cluster: &'a mut Cluster,
    now: Time,
    effects: Effects,
    /// Jobs of which something is to be written, but for new ones.
    changed: BTreeMap<JobId, Change>,
    /// Jobs that ended in this turn.
    ended: BTreeMap<JobId, Arc<Job>>,
    /// Sweeps of which a job came to its rung or ended.
    sweeps: BTreeSet<SweepId>,
}

/// How much of a job changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// Only the numbers of [`Write::UpdateProgress`].
    Progress,
    /// More than that.
    Row,
}

impl<'a> Turn<'a> {
    /// Inputs are stamped where they arrive, and may overtake each other a little: time never goes back here.
    fn new(cluster: &'a mut Cluster, now: Time) -> Self {
        let now = now.max(cluster.latest);
        let (effects, changed, ended) = (Effects::default(), BTreeMap::new(), BTreeMap::new());
        Self { cluster, now, effects, changed, ended, sweeps: BTreeSet::new() }
    }

    /// Takes in `input`.
    fn run(mut self, input: Input) -> Result<Effects, Refusal> {
        let mut about = None;
        match input {
            Input::CreateJob(new) => about = Some(self.create_job(new)?),
            Input::VerifyJob(new) => about = Some(self.verify_job(*new)?),
            Input::CreateSweep(points) => about = Some(self.create_sweep(points)?),
            Input::CancelSweep { sweep, reason } => self.cancel_sweep(sweep, &reason)?,
            Input::CancelJob { job, reason } => {
                self.cancel_job(job, &reason)?;
                about = Some(job);
            }
            Input::PauseJob(job) => {
                self.pause_job(job)?;
                about = Some(job);
            }
            Input::OrderJob { job, order, after_step } => {
                self.order_job(job, order, after_step)?;
                about = Some(job);
            }
            Input::ResumeJob(job) => {
                self.resume_job(job)?;
                about = Some(job);
            }
            Input::KeepArtifact { artifact } => {
                self.check_epoch(artifact.job, artifact.epoch)?;
                self.keep_artifact(artifact)?;
            }
            Input::DropArtifact { job, name, epoch } => {
                self.check_epoch(job, epoch)?;
                self.drop_artifact(job, name)?;
            }
            Input::DrainWorker { worker, draining } => self.drain(worker, draining)?,
            Input::Hello { session, hello } => self.hello(session, hello)?,
            Input::SessionEnded(sender) => self.session_ended(sender),
            Input::Evicted { worker, session } => self.evict(worker, session),
            Input::Heartbeat(sender, held) => self.heartbeat(sender, held)?,
            Input::RankReport(sender, report) => self.rank_report(sender, report)?,
            Input::RankStep(sender, job, epoch, step) => self.rank_step(sender, job, epoch, step)?,
            Input::StepAgain { sender, job, epoch, step, stored } => {
                self.step_again(sender, job, epoch, step, stored)?;
            }
            Input::RankTimings(sender, job, timing) => self.rank_timings(sender, job, timing)?,
            Input::RankLog { sender, job, epoch, level, message } => {
                self.rank_log(sender, job, epoch, level, &message)?;
            }
            Input::LinksSeen { sender, job, look, sight } => self.links_seen(sender, job, look, sight)?,
            Input::Tick => self.tick(),
        }
        Ok(self.finish(about))
    }

    /// Forms the rings that can be formed, if there may be any.
    fn place(mut self) -> Effects {
        if self.cluster.placement_due {
            // Those who cannot go on come before those who have not begun, and those before who could be faster: who is faster
            // ends sooner, while workers that are kept for a job that cannot begin do nothing.
            self.find_joiners(Want::Spare, |_| true);
            let walk = self.place_queued_jobs();
            let mut about_to_be_used = self.preempt();
            about_to_be_used.extend(self.kept_for_a_moment(&walk));
            self.find_joiners(Want::Growth, |class| !about_to_be_used.contains(class));
            // What was just given calls for nothing more.
            self.cluster.placement_due = false;
        }
        self.finish(None)
    }

    fn finish(mut self, about: Option<JobId>) -> Effects {
        self.judge_sweeps();
        self.cluster.latest = self.now;
        for (id, change) in &self.changed {
            let Some(job) = self.ended.get(id).or_else(|| self.cluster.jobs.get(id)) else { continue };
            self.effects.writes.push(match change {
                Change::Row => Write::UpdateJob(job.clone()),
                Change::Progress => Write::progress_of(job),
            });
        }
        let accounts = self.cluster.shares.take_changed();
        self.effects.writes.extend(accounts.into_iter().map(|(owner, one)| Write::SetAccount(owner, one)));
        let find = |id| self.ended.get(&id).or_else(|| self.cluster.jobs.get(&id)).cloned();
        self.effects.about = about;
        self.effects.job = about.and_then(find);
        self.effects
    }

    /// The job to change; its row will be written. Its state and its ring are changed by the methods of [`Cluster`].
    fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        let job = self.cluster.jobs.get_mut(&id)?;
        self.changed.insert(id, Change::Row);
        let job = Arc::make_mut(job);
        job.updated = self.now;
        Some(job)
    }

    /// The job, of which only the numbers of [`Write::UpdateProgress`] are to be changed.
    fn progress_mut(&mut self, id: JobId) -> Option<&mut Job> {
        let job = self.cluster.jobs.get_mut(&id)?;
        self.changed.entry(id).or_insert(Change::Progress);
        let job = Arc::make_mut(job);
        job.updated = self.now;
        Some(job)
    }

    /// The job's ring, of which only what is not stored is to be changed: phases and deadlines.
    fn ring_mut(&mut self, id: JobId) -> Option<&mut Ring> {
        let job = self.cluster.jobs.get_mut(&id)?;
        job.ring.as_ref()?;
        Arc::make_mut(job).ring.as_mut().map(Arc::make_mut)
    }

    /// Appends an event to a job's history.
    fn record(&mut self, id: JobId, body: EventBody) {
        let time = self.now;
        let Some(job) = self.progress_mut(id) else { return };
        job.last_sequence += 1;
        let event = JobEvent { job: id, sequence: job.last_sequence, time, body };
        self.effects.writes.push(Write::AppendEvent(event));
    }

    /// Moves a job along the transition table of [`JobState`]. Whether the table has this transition; if not, nothing
    /// happens.
    fn set_state(&mut self, id: JobId, to: JobState, reason: String) -> bool {
        let now = self.now;
        let Some(from) = self.cluster.jobs.get(&id).map(|job| job.state) else { return false };
        if !from.may_become(to) {
            return false;
        }
        self.cluster.move_job(id, to);
        if let Some(job) = self.job_mut(id) {
            job.reason.clone_from(&reason);
            if from == JobState::Queued && to == JobState::Preparing {
                job.started.get_or_insert(now);
                job.preempted = false;
            }
            if to.is_terminal() {
                job.ended = Some(now);
            }
        }
        self.record(id, EventBody::StateChange { from: Some(from), to, reason });
        self.cluster.enter_end(id);
        true
    }

    /// Takes a job's ring away and lets all its ranks go.
    fn dissolve_ring(&mut self, id: JobId, reason: &str) {
        let Some(ring) = self.cluster.take_ring(id) else { return };
        self.changed.insert(id, Change::Row);
        for (_, member) in ring.present() {
            self.release(member.worker, id, ring.epoch, reason);
        }
        for joiner in &ring.joining {
            self.release(joiner.member.worker, id, joiner.epoch, reason);
        }
    }

    /// Tells a worker to let a rank go that is no longer wanted. It gets no other rank before it did.
    fn release(&mut self, worker: WorkerId, job: JobId, epoch: Epoch, reason: &str) {
        self.cluster.change_worker(worker, |worker| worker.releasing.insert((job, epoch)));
        let reason = reason.to_owned();
        self.tell(worker, Down::StopRank { job, epoch, reason, keep_artifacts: false });
    }

    /// Sends a message to a worker if it is connected; if not, its next hello sorts it out.
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
