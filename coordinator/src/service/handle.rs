//! The handle: what the rest of the coordinator may ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringtune_shared::ids::{ContentHash, Epoch, JobId, SweepId, WorkerId};
use ringtune_shared::job::Order;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::clock::Clock;
use super::error::Error;
use super::outlooks::Outlooks;
use super::timings::RingTimings;
use super::waits::Waits;
use super::watch::Watch;
use super::watch_many::WatchMany;
use super::watchers::Watchers;
use crate::core::{
    ArtifactRecord, Cluster, Down, Hello, Input, Job, JobState, Limits, NewJob, NewVerification, Refusal,
    RequestKey, Sender, SessionId, StepRecord, Time,
};
use crate::store::{self, Store};

/// How soon an eviction that could not be stored is tried again.
const EVICT_AGAIN: Duration = Duration::from_millis(500);

/// The answer to a command, once what it did is stored.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// What a session's stream carries down.
#[derive(Debug)]
pub enum Out {
    /// Say this.
    Message(Down),
    /// End the stream; the text says why.
    End(String),
}

/// What the loop is told, and when that came here: the loop may get to it later.
pub(super) struct Arrived {
    pub(super) at: Time,
    pub(super) command: Command,
}

/// What the loop is told.
pub(super) enum Command {
    /// Makes a job. The answer is the job, or only its id where the same request made one that has ended by now.
    Make(Input, Reply<(JobId, Option<Arc<Job>>)>),
    /// Changes a job. The answer is the job.
    Change(JobId, Input, Reply<Arc<Job>>),
    CancelSweep(SweepId, String, Reply<()>),
    /// An ended job is about to be deleted.
    Forget(Box<Job>, Reply<()>),
    /// A job that had ended so is deleted.
    Deleted(JobState),
    KeepArtifact(ArtifactRecord, Reply<()>),
    DropArtifact(JobId, String, Option<Epoch>, Reply<()>),
    Drain(WorkerId, bool, Reply<()>),
    Evict(WorkerId, Option<SessionId>, Reply<()>),
    Hello(Box<Hello>, SessionId, mpsc::Sender<Out>, Reply<()>),
    /// Words of a worker.
    Said(Sender, Input),
    SessionEnded(Sender),
    Limits(Limits),
}

/// Changes the limits of the loop, without keeping it from its end.
#[derive(Clone)]
pub struct LoopLimits {
    commands: mpsc::WeakSender<Arrived>,
    clock: Clock,
}

impl LoopLimits {
    /// How much of what there may be from now on.
    pub async fn set(&self, limits: Limits) {
        let Some(commands) = self.commands.upgrade() else { return };
        let command = Command::Limits(limits);
        // A loop that has ended has no limits.
        let _ = commands.send(Arrived { at: self.clock.now(), command }).await;
    }
}

/// Cheap to clone. Changes go through the loop; reads go to the store or to the newest snapshot, both
/// of which hold only what is stored.
///
/// Whatever must be read from the store for a change is read here, before or after, so that the loop waits for nothing
/// that many share.
#[derive(Clone)]
pub struct Handle {
    pub(super) commands: mpsc::Sender<Arrived>,
    pub(super) snapshot: watch::Receiver<Arc<Cluster>>,
    pub(super) store: Arc<dyn Store>,
    pub(super) watchers: Watchers,
    pub(super) sessions: Arc<AtomicU64>,
    /// Wakes the task that removes what deleted jobs left.
    pub(super) deleted: Arc<Notify>,
    pub(super) clock: Clock,
    pub(super) waits: Waits,
    pub(super) outlooks: Outlooks,
}

impl Command {
    /// Answers that nothing can be stored. What needs no store comes back, and whose words were lost.
    pub(super) fn refuse(self, error: &Error) -> Refused {
        fn no<T>(reply: Reply<T>, error: &Error) -> Refused {
            // Nobody waits any more where the call was given up.
            let _ = reply.send(Err(error.clone()));
            Refused::Answered
        }
        match self {
            Self::Make(_, reply) => no(reply, error),
            Self::Change(_, _, reply) => no(reply, error),
            Self::CancelSweep(_, _, reply)
            | Self::Forget(_, reply)
            | Self::KeepArtifact(_, reply)
            | Self::DropArtifact(_, _, _, reply)
            | Self::Drain(_, _, reply)
            | Self::Evict(_, _, reply)
            | Self::Hello(_, _, _, reply) => no(reply, error),
            Self::Said(sender, _) | Self::SessionEnded(sender) => Refused::Unheard(sender),
            Self::Deleted(_) | Self::Limits(..) => Refused::Goes(Box::new(self)),
        }
    }
}

/// What became of a command while nothing can be stored.
pub(super) enum Refused {
    /// Whoever asked knows.
    Answered,
    /// What this worker said, or that it went, is not taken in.
    Unheard(Sender),
    /// It goes without a store.
    Goes(Box<Command>),
}

impl Handle {
    /// What jobs wait for that the coordinator cannot do now.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Who may change the loop's limits.
    pub fn limits(&self) -> LoopLimits {
        LoopLimits { commands: self.commands.downgrade(), clock: self.clock }
    }

    /// The snapshot of each commit.
    pub fn snapshots(&self) -> watch::Receiver<Arc<Cluster>> {
        self.snapshot.clone()
    }

    /// Queues a job, or finds the one that the same request made before.
    pub async fn create_job(&self, new: NewJob) -> Result<Arc<Job>, Error> {
        if let Some(known) = self.requested(new.request.as_ref()).await? {
            return Ok(known);
        }
        self.make(Input::CreateJob(new)).await
    }

    /// Queues all jobs of a sweep or none, or finds those that the same request made before. Gives the first of them.
    pub async fn create_sweep(&self, points: Vec<NewJob>) -> Result<Arc<Job>, Error> {
        if let Some(known) = self.requested(points.first().and_then(|first| first.request.as_ref())).await? {
            return Ok(known);
        }
        self.make(Input::CreateSweep(points)).await
    }

    /// Asks all jobs of a sweep to stop that have not ended. Asking again changes nothing.
    pub async fn cancel_sweep(&self, sweep: SweepId, reason: String) -> Result<(), Error> {
        self.ask(|reply| Command::CancelSweep(sweep, reason, reply)).await
    }

    /// Queues a job that computes steps of another one again, or finds the one that the same request made before.
    pub async fn verify_job(&self, new: NewVerification) -> Result<Arc<Job>, Error> {
        if let Some(known) = self.requested(new.job.request.as_ref()).await? {
            return Ok(known);
        }
        self.make(Input::VerifyJob(Box::new(new))).await
    }

    /// The job that a request made before. The store alone knows the requests of jobs that ended long ago; those of all
    /// others are looked up again where the job is made.
    ///
    /// # Errors
    /// Another request has that id; the store's.
    pub async fn requested(&self, wanted: Option<&RequestKey>) -> Result<Option<Arc<Job>>, Error> {
        let Some(wanted) = wanted else { return Ok(None) };
        let Some((job, known)) = self.store.request(&wanted.id).await? else { return Ok(None) };
        if known != *wanted {
            return Err(Refusal::RequestReused { request_id: wanted.id.clone(), job }.into());
        }
        Ok(Some(Arc::new(self.job(job).await?)))
    }

    async fn make(&self, input: Input) -> Result<Arc<Job>, Error> {
        let (id, job) = self.ask(|reply| Command::Make(input, reply)).await?;
        match job {
            Some(job) => {
                let mut job = Arc::unwrap_or_clone(job);
                self.explain(std::slice::from_mut(&mut job));
                Ok(Arc::new(job))
            }
            None => Ok(Arc::new(self.job(id).await?)),
        }
    }

    /// Asks a job to stop; returns it as it is then. One that was cancelled before is returned as it is.
    pub async fn cancel_job(&self, job: JobId, reason: String) -> Result<Arc<Job>, Error> {
        let input = Input::CancelJob { job, reason };
        match self.ask(|reply| Command::Change(job, input, reply)).await {
            Err(error) if is_not_active(&error) => {
                let job = self.job(job).await?;
                if job.state == JobState::Cancelled { Ok(Arc::new(job)) } else { Err(ended(&job)) }
            }
            answer => answer,
        }
    }

    /// Has a job hold no worker until it is resumed; returns it as it is then. Asking again changes nothing.
    pub async fn pause_job(&self, job: JobId) -> Result<Arc<Job>, Error> {
        self.change(job, Input::PauseJob(job)).await
    }

    /// Has a paused job wait for workers again; returns it as it is then. Asking again changes nothing.
    pub async fn resume_job(&self, job: JobId) -> Result<Arc<Job>, Error> {
        self.change(job, Input::ResumeJob(job)).await
    }

    /// Orders something of a job; returns it as it is then, the order last. `after_step`: not before that is done; 0: as soon as it
    /// may be.
    pub async fn order_job(&self, job: JobId, order: Order, after_step: u64) -> Result<Arc<Job>, Error> {
        self.change(job, Input::OrderJob { job, order, after_step }).await
    }

    /// Changes a job that has to be active.
    async fn change(&self, job: JobId, input: Input) -> Result<Arc<Job>, Error> {
        match self.ask(|reply| Command::Change(job, input, reply)).await {
            Err(error) if is_not_active(&error) => Err(ended(&self.job(job).await?)),
            answer => answer,
        }
    }

    /// Forgets an ended job; returns the contents that no other job's artifacts refer to.
    pub async fn delete_job(&self, id: JobId) -> Result<Vec<ContentHash>, Error> {
        // What ended never changes: nobody need be asked whether it still has.
        let job = self.job(id).await?;
        let (state, owner) = (job.state, job.queue.owner.clone());
        if !state.is_terminal() {
            return Err(Error::NotEnded { job: id, state });
        }
        self.ask(|reply| Command::Forget(Box::new(job), reply)).await?;
        let free = self.store.delete_job(id).await?;
        self.watchers.forget(id, &owner);
        // It counts no more; after the loop's end nobody counts.
        let _ = self.send(Command::Deleted(state)).await;
        self.deleted.notify_one();
        tracing::info!(job = %id, "job deleted");
        Ok(free)
    }

    /// Lists a complete file with an active job.
    pub async fn keep_artifact(&self, artifact: ArtifactRecord) -> Result<(), Error> {
        let job = artifact.job;
        match self.ask(|reply| Command::KeepArtifact(artifact, reply)).await {
            Err(error) if is_not_active(&error) => Err(ended(&self.job(job).await?)),
            answer => answer,
        }
    }

    /// Takes a file off an active job's list; returns its content, if it was there. Nobody else may list or take off a
    /// file of this name meanwhile. `epoch`: of the ring that wants it no more, where a rank says so.
    pub async fn drop_artifact(
        &self,
        job: JobId,
        name: String,
        epoch: Option<Epoch>,
    ) -> Result<Option<ContentHash>, Error> {
        // The store alone knows which files a job has.
        let Some(record) = self.store.artifact(job, &name).await? else {
            return match self.cluster().job(job) {
                Some(_) => Ok(None),
                None => Err(ended(&self.job(job).await?)),
            };
        };
        match self.ask(|reply| Command::DropArtifact(job, name, epoch, reply)).await {
            Ok(()) => Ok(Some(record.hash)),
            Err(error) if is_not_active(&error) => Err(ended(&self.job(job).await?)),
            Err(error) => Err(error),
        }
    }

    /// Keeps a worker from new ranks and has it leave its ring at the end of a step, or lets it take ranks again. Asking
    /// again changes nothing.
    ///
    /// # Errors
    /// [`Error::NoSuchWorker`]; the store's.
    pub async fn drain(&self, worker: WorkerId, draining: bool) -> Result<(), Error> {
        match self.ask(|reply| Command::Drain(worker, draining, reply)).await {
            Err(Error::Refused(Refusal::NoSuchWorker(worker))) => Err(Error::NoSuchWorker(worker)),
            answer => answer,
        }
    }

    /// A worker's certificate was revoked: it loses its session and its place at once. `session`: of that certificate; none:
    /// all its certificates are revoked. Tries until it is stored: nobody else says it again.
    pub async fn evict(&self, worker: WorkerId, session: Option<SessionId>) {
        loop {
            match self.ask(|reply| Command::Evict(worker, session, reply)).await {
                // After the loop's end there is nobody left to know.
                Ok(()) | Err(Error::ShuttingDown) => return,
                Err(error) => tracing::warn!(%worker, %error, "cannot evict a worker yet: trying again"),
            }
            tokio::time::sleep(EVICT_AGAIN).await;
        }
    }

    /// Opens a session for a worker; from then on `out` carries what it is told.
    pub async fn hello(&self, hello: Hello, out: mpsc::Sender<Out>) -> Result<Sender, Error> {
        let session = SessionId(self.sessions.fetch_add(1, Ordering::Relaxed));
        let sender = Sender { worker: hello.worker, session };
        self.ask(|reply| Command::Hello(Box::new(hello), session, out, reply)).await?;
        Ok(sender)
    }

    /// Passes on what a worker said; waits while the loop is busy.
    pub async fn said(&self, sender: Sender, input: Input) -> Result<(), Error> {
        let input = self.with_stored_state(input).await?;
        self.send(Command::Said(sender, input)).await
    }

    /// Adds to a step of a verification the stored state of the step that it repeats, looked up for each step.
    async fn with_stored_state(&self, input: Input) -> Result<Input, Error> {
        let Input::RankStep(sender, job, epoch, step) = input else { return Ok(input) };
        let cluster = self.cluster();
        let verification = cluster.job(job).and_then(|job| job.verification.as_ref());
        let Some(original) = verification.map(|verification| verification.job) else {
            return Ok(Input::RankStep(sender, job, epoch, step));
        };
        let stored = match self.step(original, step.step).await {
            Ok(stored) => stored.and_then(|stored| stored.state),
            // What cannot be read is not there.
            Err(store::Error::Damaged { what, problem }) => {
                tracing::error!(%job, %original, step = step.step, what, problem, "a stored step cannot be read");
                None
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Input::StepAgain { sender, job, epoch, step, stored })
    }

    /// A step of a job, if it is stored.
    pub async fn step(&self, job: JobId, step: u64) -> Result<Option<StepRecord>, store::Error> {
        let found = self.store.steps(job, step.saturating_sub(1), 1).await?;
        Ok(found.into_iter().find(|found| found.step == step))
    }

    /// Tells that a session ended.
    pub async fn session_ended(&self, sender: Sender) {
        // After the loop's end there is nobody left to know.
        let _ = self.send(Command::SessionEnded(sender)).await;
    }

    /// A job as stored, completed by what is kept in memory alone.
    pub async fn job(&self, id: JobId) -> Result<Job, Error> {
        let mut job = self.store.job(id).await?.ok_or(Error::NoSuchJob(id))?;
        self.explain(std::slice::from_mut(&mut job));
        Ok(job)
    }

    /// Completes jobs read from the store by what is not stored: why they wait, and how far their ranks are.
    pub fn explain(&self, jobs: &mut [Job]) {
        if jobs.iter().all(|job| job.state.is_terminal()) {
            return;
        }
        let cluster = self.cluster();
        let waiting = self.outlooks.waiting(&cluster);
        for job in jobs.iter_mut() {
            if job.state == JobState::Queued {
                waiting.explain(job);
            }
            let live = cluster.job(job.id).and_then(|live| live.ring.as_ref());
            if let (Some(ring), Some(live)) = (&mut job.ring, live)
                && ring.epoch == live.epoch
            {
                *ring = Arc::clone(live);
            }
            self.waits.explain(job);
        }
    }

    /// The events of a job after `after`: those stored first, then as they come, and between them how far its ranks
    /// are. A slow reader slows down nobody: it reads from the store again. Ends after the event that ended the job.
    ///
    /// # Errors
    /// [`Error::NoSuchJob`]; [`Error::NoSuchSequence`] where the job has not come to `after`; the store's.
    pub async fn watch_job(&self, id: JobId, after: u64) -> Result<Watch, Error> {
        // Subscribed before the job is read: no event falls between.
        let subscription = self.watchers.subscribe(id);
        let newest = self.job(id).await?.last_sequence;
        if after > newest {
            return Err(Error::NoSuchSequence { given: after, newest });
        }
        Ok(Watch::new(self.store.clone(), self.snapshot.clone(), subscription, after))
    }

    /// What the steps of a job's ranks take now; nothing while nobody says so.
    pub fn timings(&self, id: JobId) -> RingTimings {
        self.watchers.timings(id)
    }

    /// What happens from now on to these jobs, or to all if none is named. `owner`: jobs of others are not there.
    ///
    /// # Errors
    /// [`Error::NoSuchJob`]; the store's.
    pub async fn watch_jobs(&self, named: &[JobId], owner: Option<&str>) -> Result<WatchMany, Error> {
        // Subscribed before the jobs are read: no event falls between.
        let feed = self.watchers.feed();
        let outlooks = self.outlooks.clone();
        WatchMany::open(self.store.clone(), self.snapshot.clone(), outlooks, feed, named, owner).await
    }

    /// The store, for reading.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// All jobs that have not ended and all workers, as of the last commit.
    pub fn cluster(&self) -> Arc<Cluster> {
        self.snapshot.borrow().clone()
    }

    /// When the coordinator started.
    pub fn started(&self) -> Time {
        self.clock.started()
    }

    /// The clock that inputs carry.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Now, by the clock that inputs carry.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    pub(super) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply)).await?;
        answer.await.map_err(|_| Error::ShuttingDown)?
    }

    async fn send(&self, command: Command) -> Result<(), Error> {
        // Stamped before it waits for its turn.
        let arrived = Arrived { at: self.clock.now(), command };
        self.commands.send(arrived).await.map_err(|_| Error::ShuttingDown)
    }
}

fn is_not_active(error: &Error) -> bool {
    matches!(error, Error::Refused(Refusal::NotActive(_)))
}

fn ended(job: &Job) -> Error {
    Error::AlreadyEnded { job: job.id, state: job.state }
}
