//! The loop.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ringtune_shared::ids::{ContentHash, Epoch, JobId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{debug, error, info, warn};

use super::batch::Batch;
use super::clock::Clock;
use super::error::Error;
use super::handle::{Command, Handle, Out, Reply};
use super::watch::Watchers;
use crate::core::{
    Action, Cluster, EventBody, Input, Job, JobState, NewJob, Options, Refusal, Sender, SessionId,
    WorkerState, Write,
};
use crate::metrics::Metrics;
use crate::store::{self, Store};

/// Commands stored in one commit at most.
const BATCH: usize = 256;
/// Commands that may wait; then callers do.
const WAITING: usize = 1024;
/// How long the store may fail without a break. Then the loop ends, rather than be there and do nothing: training
/// goes on without it, and a restart finds everything that was stored.
const STORE_PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at the deadlines.
const TICK: Duration = Duration::from_millis(250);

/// What the loop starts from.
pub struct Settings {
    /// The core's limits and times.
    pub options: Options,
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// What is counted.
    pub metrics: Metrics,
}

/// Reads the state back and starts the loop; it ends when the last handle is gone, or when the store does not
/// recover.
///
/// # Errors
/// The store's.
pub async fn start(settings: Settings) -> Result<(Handle, JoinHandle<()>), store::Error> {
    let Settings { options, store, metrics } = settings;
    let clock = Clock::start();
    let recovered = store.recover().await?;
    if !recovered.jobs.is_empty() {
        info!(jobs = recovered.jobs.len(), "found jobs that had not ended");
    }
    let ended = store.count_jobs().await?.into_iter().filter(|(state, _)| state.is_terminal()).collect();
    let state = Arc::new(Cluster::recover(options, recovered, clock.now()));
    let (commands, receiver) = mpsc::channel(WAITING);
    let (snapshot, newest) = watch::channel(state.clone());
    let watchers = Watchers::default();
    let service = Loop {
        receiver,
        state,
        snapshot,
        store: store.clone(),
        watchers: watchers.clone(),
        sessions: HashMap::new(),
        unheard: Vec::new(),
        ended,
        metrics,
        clock,
        failing_since: None,
    };
    let sessions = Arc::new(AtomicU64::new(1));
    let handle = Handle { commands, snapshot: newest, store, watchers, sessions, clock };
    Ok((handle, tokio::spawn(service.run())))
}

struct Loop {
    receiver: mpsc::Receiver<Command>,
    state: Arc<Cluster>,
    snapshot: watch::Sender<Arc<Cluster>>,
    store: Arc<dyn Store>,
    watchers: Watchers,
    sessions: HashMap<SessionId, mpsc::Sender<Out>>,
    /// Sessions that are over, which the state does not know yet.
    unheard: Vec<Sender>,
    /// Jobs that ended, by how.
    ended: BTreeMap<JobState, u64>,
    metrics: Metrics,
    clock: Clock,
    /// Since when no commit has succeeded.
    failing_since: Option<Instant>,
}

impl Loop {
    async fn run(mut self) {
        let mut ticker = tokio::time::interval(TICK);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut waiting = Vec::with_capacity(BATCH);
        self.show_counts();
        loop {
            let mut batch = Batch::new(&self.state);
            tokio::select! {
                count = self.receiver.recv_many(&mut waiting, BATCH) => {
                    if count == 0 {
                        return;
                    }
                }
                _ = ticker.tick() => self.tick(&mut batch),
            }
            for command in waiting.drain(..) {
                batch = self.take(batch, command).await;
            }
            self.commit(batch).await;
            if self.failing_since.is_some_and(|since| since.elapsed() > STORE_PATIENCE) {
                error!("nothing could be stored for {} s: ending", STORE_PATIENCE.as_secs());
                return;
            }
        }
    }

    fn tick(&mut self, batch: &mut Batch) {
        for sender in std::mem::take(&mut self.unheard) {
            self.apply_said(batch, sender, Input::SessionEnded(sender));
        }
        match batch.next.apply(Input::Tick, self.clock.now()) {
            Ok(effects) => batch.add(effects),
            Err(refusal) => error!(%refusal, "a tick was refused"),
        }
    }

    /// Applies one command to the batch. Those that must read the store first get a batch of their own.
    async fn take(&mut self, mut batch: Batch, command: Command) -> Batch {
        match command {
            Command::Said(sender, input) => self.apply_said(&mut batch, sender, input),
            Command::SessionEnded(sender) => {
                self.sessions.remove(&sender.session);
                self.apply_said(&mut batch, sender, Input::SessionEnded(sender));
            }
            Command::Hello(hello, session, out, reply) => {
                self.apply_request(&mut batch, Input::Hello { session, hello: *hello }, |outcome, batch| {
                    if outcome.is_ok() {
                        batch.opened.push((session, out));
                    }
                    (reply, outcome.map(|_| ()))
                });
            }
            Command::CreateJob(new, reply) => return self.create_job(batch, new, reply).await,
            Command::CancelJob(job, reason, reply) => {
                return self.cancel_job(batch, job, reason, reply).await;
            }
            Command::DeleteJob(job, reply) => {
                self.commit(batch).await;
                let _ = reply.send(self.delete_job(job).await);
                return Batch::new(&self.state);
            }
            Command::DropArtifact(job, name, epoch, reply) => {
                return self.drop_artifact(batch, (job, name, epoch), reply).await;
            }
            Command::KeepArtifact(artifact, epoch, reply) => {
                let job = artifact.job;
                if batch.next.job(job).is_some() {
                    self.apply_request(&mut batch, Input::KeepArtifact { artifact, epoch }, |outcome, _| {
                        (reply, outcome.map(|_| ()))
                    });
                    return batch;
                }
                self.commit(batch).await;
                let _ = reply.send(self.stored_job(job).await.and_then(|job| Err(ended(&job))));
                return Batch::new(&self.state);
            }
        }
        batch
    }

    fn apply_said(&self, batch: &mut Batch, sender: Sender, input: Input) {
        match batch.next.apply(input, self.clock.now()) {
            Ok(effects) => {
                batch.heard.push(sender);
                batch.add(effects);
            }
            Err(refusal) => debug!(worker = %sender.worker, %refusal, "dropped a worker's message"),
        }
    }

    /// Applies a request; it is answered after the commit, or at once if it is refused.
    fn apply_request<T: Send + 'static>(
        &self,
        batch: &mut Batch,
        input: Input,
        answer: impl FnOnce(Result<Option<Arc<Job>>, Error>, &mut Batch) -> (Reply<T>, Result<T, Error>),
    ) {
        let outcome = batch.next.apply(input, self.clock.now()).map_err(Error::from).map(|effects| {
            let job = effects.job.clone();
            batch.add(effects);
            job
        });
        let (reply, outcome) = answer(outcome, batch);
        match outcome {
            Ok(value) => batch.answers.push(Box::new(move |stored| {
                let _ = reply.send(stored.map(|()| value));
            })),
            Err(error) => {
                let _ = reply.send(Err(error));
            }
        }
    }

    async fn create_job(&mut self, batch: Batch, new: NewJob, reply: Reply<Arc<Job>>) -> Batch {
        // The store alone knows the requests of jobs that ended.
        self.commit(batch).await;
        let mut batch = Batch::new(&self.state);
        let id = new.id;
        if let Some(wanted) = &new.request {
            match self.store.request(&wanted.id).await {
                Ok(None) => {}
                Ok(Some((job, known))) if known == *wanted => {
                    let _ = reply.send(self.stored_job(job).await.map(Arc::new));
                    return batch;
                }
                Ok(Some((job, _))) => {
                    let refusal = Refusal::RequestReused { request_id: wanted.id.clone(), job };
                    let _ = reply.send(Err(refusal.into()));
                    return batch;
                }
                Err(error) => {
                    let _ = reply.send(Err(error.into()));
                    return batch;
                }
            }
        }
        self.apply_request(&mut batch, Input::CreateJob(new), |outcome, _| (reply, the_job(outcome, id)));
        batch
    }

    async fn cancel_job(
        &mut self,
        mut batch: Batch,
        job: JobId,
        reason: String,
        reply: Reply<Arc<Job>>,
    ) -> Batch {
        if batch.next.job(job).is_some() {
            let input = Input::CancelJob { job, reason };
            self.apply_request(&mut batch, input, |outcome, _| (reply, the_job(outcome, job)));
            return batch;
        }
        self.commit(batch).await;
        let answer = match self.stored_job(job).await {
            Ok(job) if job.state == JobState::Cancelled => Ok(Arc::new(job)),
            Ok(job) => Err(ended(&job)),
            Err(error) => Err(error),
        };
        let _ = reply.send(answer);
        Batch::new(&self.state)
    }

    /// The store alone knows which files a job has.
    async fn drop_artifact(
        &mut self,
        batch: Batch,
        (job, name, epoch): (JobId, String, Option<Epoch>),
        reply: Reply<Option<ContentHash>>,
    ) -> Batch {
        self.commit(batch).await;
        let mut batch = Batch::new(&self.state);
        if batch.next.job(job).is_none() {
            let _ = reply.send(self.stored_job(job).await.and_then(|job| Err(ended(&job))));
            return batch;
        }
        match self.store.artifact(job, &name).await {
            Ok(Some(record)) => {
                self.apply_request(&mut batch, Input::DropArtifact { job, name, epoch }, |outcome, _| {
                    (reply, outcome.map(|_| Some(record.hash)))
                });
            }
            Ok(None) => drop(reply.send(Ok(None))),
            Err(error) => drop(reply.send(Err(error.into()))),
        }
        batch
    }

    async fn delete_job(&mut self, id: JobId) -> Result<Vec<ContentHash>, Error> {
        let job = self.stored_job(id).await?;
        if !job.state.is_terminal() {
            return Err(Error::NotEnded { job: id, state: job.state });
        }
        let free = self.store.delete_job(id).await?;
        if let Some(count) = self.ended.get_mut(&job.state) {
            *count = count.saturating_sub(1);
        }
        self.watchers.forget(id);
        self.show_counts();
        info!(job = %id, "job deleted");
        Ok(free)
    }

    async fn stored_job(&self, id: JobId) -> Result<Job, Error> {
        self.store.job(id).await?.ok_or(Error::NoSuchJob(id))
    }

    /// Stores a batch; then, and only then, it counts.
    async fn commit(&mut self, mut batch: Batch) {
        let writes = batch.coalesced_writes();
        if let Err(error) = self.store.commit(&writes).await {
            error!(%error, writes = writes.len(), "cannot store: nothing was changed");
            self.failing_since.get_or_insert_with(Instant::now);
            self.give_up(batch, error);
            return;
        }
        if !writes.is_empty() {
            self.failing_since = None;
        }
        // 1. The copy is the state.
        self.state = Arc::new(batch.next);
        self.snapshot.send_replace(self.state.clone());
        self.sessions.extend(batch.opened);
        // 2. Whoever asked or watches hears of it.
        for answer in batch.answers {
            answer(Ok(()));
        }
        for write in &writes {
            self.tell_of(write);
        }
        self.show_counts();
        // 3. What was decided is done.
        for action in batch.actions {
            self.act(action);
        }
    }

    fn give_up(&mut self, batch: Batch, error: store::Error) {
        let error = Error::from(error);
        for answer in batch.answers {
            answer(Err(error.clone()));
        }
        for sender in batch.heard {
            self.end_session(sender.session, "the coordinator could not store what you said".to_owned());
            self.unheard.push(sender);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send(session, message) => {
                let sent = self.sessions.get(&session).map(|out| out.try_send(Out::Message(message)));
                if matches!(sent, Some(Err(_))) {
                    warn!(?session, "a worker does not read what it is told: closing its session");
                    self.sessions.remove(&session);
                    // Its stream's end comes back as SessionEnded, but where the call was dropped before
                    // there was a stream.
                    let worker = self.state.workers().find(|worker| worker.session == Some(session));
                    self.unheard.extend(worker.map(|worker| Sender { worker: worker.id, session }));
                }
            }
            Action::Close(session, reason) => self.end_session(session, reason),
        }
    }

    fn end_session(&mut self, session: SessionId, reason: String) {
        if let Some(out) = self.sessions.remove(&session) {
            // If its queue is full the stream ends without the reason.
            let _ = out.try_send(Out::End(reason));
        }
    }

    fn tell_of(&mut self, write: &Write) {
        match write {
            Write::AppendEvent(event) => {
                self.watchers.notify(event.job, event.sequence);
                match &event.body {
                    EventBody::StateChange { to, reason, .. } => {
                        info!(job = %event.job, state = %to, reason, "job");
                    }
                    EventBody::Log { level, rank, message } => {
                        debug!(job = %event.job, ?level, rank, message, "job log");
                    }
                    EventBody::Step(_) | EventBody::Progress(_) | EventBody::Artifact(_) => {}
                }
            }
            Write::UpdateJob(job) if job.state.is_terminal() => {
                *self.ended.entry(job.state).or_default() += 1;
            }
            Write::AppendStep(..) => self.metrics.steps.inc(),
            _ => {}
        }
    }

    fn show_counts(&self) {
        for state in JobState::ALL {
            let ended = self.ended.get(&state).copied().unwrap_or(0);
            let count = usize::try_from(ended).unwrap_or(usize::MAX).max(self.state.count_jobs(state));
            self.metrics.set_jobs(state, count);
        }
        for state in [WorkerState::Idle, WorkerState::Busy, WorkerState::Lost] {
            self.metrics.set_workers(state, self.state.count_workers(state));
        }
    }
}

fn the_job(outcome: Result<Option<Arc<Job>>, Error>, id: JobId) -> Result<Arc<Job>, Error> {
    outcome.and_then(|job| job.ok_or(Error::NoSuchJob(id)))
}

fn ended(job: &Job) -> Error {
    Error::AlreadyEnded { job: job.id, state: job.state }
}
