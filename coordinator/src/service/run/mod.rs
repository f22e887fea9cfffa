//! The loop.

mod commands;
mod failing;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ringtune_shared::daemon::notify::Notifier;
use ringtune_shared::ids::JobId;
use ringtune_traces::Tracer;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, error, info, warn};

use super::batch::{Batch, Session};
use super::clock::Clock;
use super::error::Error;
use super::handle::{Arrived, Handle, Out};
use super::outlooks::Outlooks;
use super::pace::{Pace, TICK};
use super::purge;
use super::spans;
use super::waits::Waits;
use super::watchers::Watchers;
use crate::core::{
    Action, Cluster, EventBody, Input, JobEvent, JobState, Options, Sender, SessionId, Time, WorkerState,
    Write,
};
use crate::metrics::Metrics;
use crate::store::{self, Store};
use failing::{Failing, Tried};

/// Commands stored in one commit at most.
const BATCH: usize = 4096;
/// Commands that may wait; then callers do.
const WAITING: usize = 8192;
/// How long the store may fail without a break, but for a full disk. Then the loop ends, rather than be there and do nothing:
/// training goes on without it, and a restart finds everything that was stored.
pub const STORE_PATIENCE: Duration = Duration::from_secs(20);
/// A commit that takes longer is told of: everybody waits for it.
const SLOW_COMMIT: Duration = Duration::from_secs(5);

/// What the loop starts from.
pub struct Settings {
    /// The core's limits and times.
    pub options: Options,
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// What is counted.
    pub metrics: Metrics,
    /// Who watches over the loop.
    pub notifier: Notifier,
    /// Takes spans of what happens to jobs.
    pub tracer: Tracer,
}

/// Reads the state back and starts the loop; it ends when the last handle is gone, or when the store does not
/// recover.
///
/// # Errors
/// The store's.
pub async fn start(settings: Settings) -> Result<(Handle, JoinHandle<()>), store::Error> {
    let Settings { options, store, metrics, notifier, tracer } = settings;
    let clock = Clock::start();
    let recovered = store.recover().await?;
    if !recovered.jobs.is_empty() {
        info!(jobs = recovered.jobs.len(), "found jobs that had not ended");
    }
    let ended = store.count_jobs().await?.into_iter().filter(|(state, _)| state.is_terminal()).collect();
    let pace = Pace::new(options.session_timeout, clock.now());
    let state = Arc::new(Cluster::recover(options, recovered, clock.now()));
    let (commands, receiver) = mpsc::channel(WAITING);
    let (snapshot, newest) = watch::channel(state.clone());
    let waits = Waits::default();
    let (watchers, deleted, over) = (Watchers::default(), Arc::new(Notify::new()), CancellationToken::new());
    tokio::spawn(purge::run(store.clone(), deleted.clone(), over.clone()));
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
        pace,
        failing: None,
        stale_since: None,
        waits: waits.clone(),
        notifier,
        tracer,
        _purge: over.drop_guard(),
    };
    let sessions = Arc::new(AtomicU64::new(1));
    let handle = Handle {
        commands,
        snapshot: newest,
        store,
        watchers,
        sessions,
        deleted,
        clock,
        waits,
        outlooks: Outlooks::default(),
    };
    Ok((handle, tokio::spawn(service.run())))
}

struct Loop {
    receiver: mpsc::Receiver<Arrived>,
    state: Arc<Cluster>,
    snapshot: watch::Sender<Arc<Cluster>>,
    store: Arc<dyn Store>,
    watchers: Watchers,
    sessions: HashMap<SessionId, Session>,
    /// Sessions that are over, which the state does not know yet.
    unheard: Vec<Sender>,
    /// Jobs that ended, by how.
    ended: BTreeMap<JobState, u64>,
    metrics: Metrics,
    clock: Clock,
    pace: Pace,
    /// Nothing can be stored.
    failing: Option<Failing>,
    /// Since when the state may be behind what workers say, as they could not say it.
    stale_since: Option<Instant>,
    waits: Waits,
    notifier: Notifier,
    tracer: Tracer,
    /// Ends the removal of deleted jobs with the loop.
    _purge: DropGuard,
}

impl Loop {
    async fn run(mut self) {
        let mut ticker = tokio::time::interval(Duration::from_millis(TICK.unsigned_abs()));
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut waiting = Vec::with_capacity(BATCH);
        self.show_counts();
        loop {
            tokio::select! {
                biased;
                count = self.receiver.recv_many(&mut waiting, BATCH) => {
                    if count == 0 {
                        return;
                    }
                }
                _ = ticker.tick() => {}
            }
            if self.failing.is_some() {
                match self.try_again(&mut waiting).await {
                    Tried::Works => {}
                    Tried::Fails => continue,
                    Tried::IsGivenUp => return,
                }
            }
            self.pace.wakes(self.clock.now());
            // 1. What arrived.
            let mut batch = Batch::new(&self.state);
            let mut time = self.clock.now();
            let newest = waiting.last().map(|arrived: &Arrived| arrived.at);
            for arrived in waiting.drain(..) {
                self.take(&mut batch, arrived);
            }
            // 2. What did not. As long as more is waiting, it is not later than what was taken in.
            if let Some(newest) = newest.filter(|_| !self.receiver.is_empty()) {
                time = time.min(newest);
            }
            let ticks = self.pace.tick_due(self.clock.now());
            if ticks {
                self.tick(&mut batch, time);
            }
            // 3. What follows for the queue.
            let placed = batch.next.place(time);
            batch.add(placed);
            self.commit(batch).await;
            if self.failing.is_none() {
                self.notifier.progressed();
            }
        }
    }

    fn tick(&mut self, batch: &mut Batch, time: Time) {
        for sender in std::mem::take(&mut self.unheard) {
            batch.said(time, sender, Input::SessionEnded(sender));
        }
        match batch.next.apply(Input::Tick, time) {
            Ok(effects) => batch.add(effects),
            Err(refusal) => error!(%refusal, "a tick was refused"),
        }
    }

    /// Stores a batch; then, and only then, it counts.
    async fn commit(&mut self, mut batch: Batch) {
        for what in std::mem::take(&mut batch.other_epochs) {
            self.metrics.other_epoch(what);
        }
        let (writes, actions) = (batch.coalesced_writes(), batch.coalesced_actions());
        if let Err(error) = self.store_all(&writes).await {
            error!(%error, writes = writes.len(), "cannot store: nothing was changed");
            let error = Arc::new(error);
            self.fails(Arc::clone(&error));
            self.give_up(batch, error);
            return;
        }
        // 1. The copy is the state.
        spans::record(&self.tracer, &self.state, &writes);
        self.state = Arc::new(batch.next);
        self.snapshot.send_replace(self.state.clone());
        self.sessions.extend(batch.opened);
        // 2. Whoever asked or watches hears of it.
        for answer in batch.answers {
            answer(Ok(&self.state));
        }
        for (job, progress) in batch.progress {
            self.watchers.progressed(job, progress);
        }
        for (job, members, timing) in batch.timings {
            self.watchers.timed(job, members, timing);
        }
        for write in &writes {
            self.tell_of(write);
        }
        batch.reformed.into_iter().for_each(|ring| self.metrics.ring_reformed(ring));
        self.show_counts();
        // 3. What was decided is done.
        for action in actions {
            self.act(action);
        }
    }

    async fn store_all(&mut self, writes: &[Write]) -> Result<(), store::Error> {
        if !writes.is_empty() {
            let begun = Instant::now();
            let stored = self.store.commit(writes).await;
            let took = begun.elapsed();
            self.metrics.commit_seconds.observe(took.as_secs_f64());
            if took > SLOW_COMMIT {
                warn!(
                    seconds = took.as_secs(),
                    writes = writes.len(),
                    "storing took long: is the disk busy?"
                );
            }
            stored?;
            self.stale_since = None;
        }
        Ok(())
    }

    fn give_up(&mut self, batch: Batch, error: Arc<store::Error>) {
        let error = Error::Store(error);
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
                let Some(Session { worker, out }) = self.sessions.get(&session) else { return };
                if out.try_send(Out::Message(message)).is_err() {
                    warn!(%worker, "a worker does not read what it is told: closing its session");
                    // Its stream's end comes back as SessionEnded, but where the call was dropped before
                    // there was a stream.
                    self.unheard.push(Sender { worker: *worker, session });
                    self.sessions.remove(&session);
                }
            }
            Action::Close(session, reason) => self.end_session(session, reason),
        }
    }

    fn end_session(&mut self, session: SessionId, reason: String) {
        if let Some(closed) = self.sessions.remove(&session) {
            // If its queue is full the stream ends without the reason.
            let _ = closed.out.try_send(Out::End(reason));
        }
    }

    fn tell_of(&mut self, write: &Write) {
        match write {
            Write::AppendEvent(event) => {
                self.watchers.notify(event);
                match &event.body {
                    EventBody::StateChange { from, to, reason } => {
                        let epoch = self.epoch_of(event.job);
                        info!(job = %event.job, epoch, state = %to, reason, "job");
                        self.count_change(event, *from, *to);
                    }
                    EventBody::Log { level, rank, message } => {
                        let epoch = self.epoch_of(event.job);
                        debug!(job = %event.job, rank, epoch, severity = ?level, line = message, "job log");
                    }
                    EventBody::Step(_) | EventBody::Progress(_) | EventBody::Artifact(_) => {}
                }
            }
            Write::UpdateJob(job) => {
                self.watchers.has_ring(job.id, job.ring.as_ref().map(|ring| ring.epoch));
                if job.state.is_terminal() {
                    *self.ended.entry(job.state).or_default() += 1;
                }
            }
            Write::AppendStep(..) => self.metrics.steps.inc(),
            _ => {}
        }
    }

    /// Of the ring that a job has, for the log.
    fn epoch_of(&self, job: JobId) -> Option<u64> {
        self.state.job(job).and_then(|job| Some(job.ring.as_ref()?.epoch.0))
    }

    fn count_change(&self, event: &JobEvent, from: Option<JobState>, to: JobState) {
        if to.is_terminal() {
            self.metrics.job_ended(to);
        }
        // A job may come back to the queue: what it waits there is no longer its owner's first concern.
        let placed = from == Some(JobState::Queued) && to == JobState::Preparing;
        if let Some(job) = self.state.job(event.job).filter(|job| placed && job.started == Some(event.time)) {
            self.metrics.queue_seconds.observe((event.time.0 - job.created.0).max(0) as f64 / 1000.0);
        }
    }

    fn show_counts(&self) {
        self.metrics.sessions.set(i64::try_from(self.sessions.len()).unwrap_or(i64::MAX));
        self.metrics.stragglers.set(i64::try_from(self.watchers.stragglers()).unwrap_or(i64::MAX));
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

#[cfg(test)]
mod tests;
