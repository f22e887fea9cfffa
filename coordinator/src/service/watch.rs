//! Watching a job: the store is read again whenever the loop says that there is more.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringtune_shared::ids::JobId;
use tokio::sync::watch;

use super::error::Error;
use crate::core::JobEvent;
use crate::store::Store;

/// Events read at a time.
const PAGE: u32 = 256;

/// Who waits for which job's events.
#[derive(Clone, Default)]
pub(super) struct Watchers(Arc<Mutex<HashMap<JobId, watch::Sender<u64>>>>);

impl Watchers {
    pub(super) fn subscribe(&self, job: JobId) -> Subscription {
        let receiver = self.jobs().entry(job).or_insert_with(|| watch::Sender::new(0)).subscribe();
        Subscription { receiver: Some(receiver), job, watchers: self.clone() }
    }

    /// The newest event of `job` is stored. Never waits.
    pub(super) fn notify(&self, job: JobId, sequence: u64) {
        if let Some(sender) = self.jobs().get(&job) {
            sender.send_replace(sequence);
        }
    }

    /// The job is deleted: nobody need wait any longer.
    pub(super) fn forget(&self, job: JobId) {
        self.jobs().remove(&job);
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<JobId, watch::Sender<u64>>> {
        // Never held over anything that can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One place among the watchers; dropped, it is given back.
pub(super) struct Subscription {
    receiver: Option<watch::Receiver<u64>>,
    job: JobId,
    watchers: Watchers,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut jobs = self.watchers.jobs();
        drop(self.receiver.take());
        if jobs.get(&self.job).is_some_and(|sender| sender.receiver_count() == 0) {
            jobs.remove(&self.job);
        }
    }
}

/// The events of one job, in order, without gap or duplicate.
pub struct Watch {
    store: Arc<dyn Store>,
    subscription: Subscription,
    job: JobId,
    /// The last event that was handed out.
    after: u64,
    read: VecDeque<JobEvent>,
    over: bool,
}

impl Watch {
    pub(super) fn new(store: Arc<dyn Store>, subscription: Subscription, job: JobId, after: u64) -> Self {
        Self { store, subscription, job, after, read: VecDeque::new(), over: false }
    }

    /// The next event; none after the one that ended the job, or when the job was deleted.
    ///
    /// # Errors
    /// The store's.
    pub async fn next(&mut self) -> Result<Option<JobEvent>, Error> {
        loop {
            if let Some(event) = self.read.pop_front() {
                self.after = event.sequence;
                self.over = event.body.ending().is_some();
                return Ok(Some(event));
            }
            if self.over {
                return Ok(None);
            }
            // Marked as seen before reading: what is stored meanwhile wakes us again.
            if let Some(receiver) = &mut self.subscription.receiver {
                receiver.mark_unchanged();
            }
            self.read = self.store.events(self.job, self.after, PAGE).await?.into();
            if self.read.is_empty() && !self.wait_for_more().await? {
                return Ok(None);
            }
        }
    }

    /// Whether there may be more, once there is.
    async fn wait_for_more(&mut self) -> Result<bool, Error> {
        match self.store.standing(self.job).await? {
            None => return Ok(false),
            Some(job) if job.last_sequence > self.after => return Ok(true),
            Some(job) if job.state.is_terminal() => return Ok(false),
            Some(_) => {}
        }
        match &mut self.subscription.receiver {
            // A closed channel: the job was deleted, or the loop ended; the next read finds out.
            Some(receiver) => Ok(receiver.changed().await.is_ok()),
            None => Ok(false),
        }
    }
}
