//! Who waits for news of which job. Telling them never waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringtune_shared::ids::JobId;
use tokio::sync::{broadcast, watch};

use super::progress::Ranks;
use crate::core::{EventBody, JobEvent, JobState, Progress};

/// Events that a watcher of many jobs may be behind; one that is further behind has to begin again.
const FEED: usize = 4096;

/// What there is to know about one job.
struct Topic {
    /// The newest event's sequence number.
    events: watch::Sender<u64>,
    ranks: watch::Sender<Ranks>,
}

impl Topic {
    fn new() -> Self {
        Self { events: watch::Sender::new(0), ranks: watch::Sender::new(Ranks::default()) }
    }

    /// Nobody watches, and there is nothing that somebody who comes could be told.
    fn is_idle(&self) -> bool {
        self.events.receiver_count() == 0 && self.ranks.borrow().is_empty()
    }
}

/// All watchers, and the ranks' progress. Cheap to clone.
#[derive(Clone)]
pub(super) struct Watchers {
    topics: Arc<Mutex<HashMap<JobId, Topic>>>,
    feed: broadcast::Sender<Arc<JobEvent>>,
}

impl Default for Watchers {
    fn default() -> Self {
        Self { topics: Arc::default(), feed: broadcast::Sender::new(FEED) }
    }
}

impl Watchers {
    pub(super) fn subscribe(&self, job: JobId) -> Subscription {
        let mut topics = self.topics();
        let topic = topics.entry(job).or_insert_with(Topic::new);
        let (events, ranks) = (topic.events.subscribe(), topic.ranks.subscribe());
        Subscription { events: Some(events), ranks, job, watchers: self.clone() }
    }

    /// All events of all jobs from now on.
    pub(super) fn feed(&self) -> broadcast::Receiver<Arc<JobEvent>> {
        self.feed.subscribe()
    }

    /// This event is stored, and the snapshot shows it.
    pub(super) fn notify(&self, event: &JobEvent) {
        let mut topics = self.topics();
        if let Some(topic) = topics.get(&event.job) {
            topic.events.send_replace(event.sequence);
            if ends_a_stage(&event.body) {
                topic.ranks.send_modify(Ranks::clear);
            }
            if topic.is_idle() {
                topics.remove(&event.job);
            }
        }
        drop(topics);
        if self.feed.receiver_count() > 0 {
            // Fails only where the last of them left just now.
            let _ = self.feed.send(Arc::new(event.clone()));
        }
    }

    /// A rank of an active job went on.
    pub(super) fn progressed(&self, job: JobId, progress: Progress) {
        let mut topics = self.topics();
        let topic = topics.entry(job).or_insert_with(Topic::new);
        topic.ranks.send_modify(|ranks| ranks.put(progress));
    }

    /// The job is deleted: nobody need wait any longer.
    pub(super) fn forget(&self, job: JobId) {
        self.topics().remove(&job);
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<JobId, Topic>> {
        // Never held over anything that can panic half-way.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What ranks said of their preparation is of no use once they run or do a step, and nothing is once the job ended.
fn ends_a_stage(body: &EventBody) -> bool {
    match body {
        EventBody::StateChange { to, .. } => *to == JobState::Running || to.is_terminal(),
        EventBody::Step(_) => true,
        EventBody::Progress(_) | EventBody::Artifact(_) | EventBody::Log { .. } => false,
    }
}

/// One place among the watchers of a job; dropped, it is given back.
pub(super) struct Subscription {
    events: Option<watch::Receiver<u64>>,
    ranks: watch::Receiver<Ranks>,
    pub(super) job: JobId,
    watchers: Watchers,
}

impl Subscription {
    pub(super) fn ranks(&self) -> watch::Receiver<Ranks> {
        self.ranks.clone()
    }

    /// What there is now is known.
    pub(super) fn mark_seen(&mut self) {
        if let Some(events) = &mut self.events {
            events.mark_unchanged();
        }
    }

    /// Waits until there may be more than what was marked as seen.
    pub(super) async fn more(&mut self) {
        if let Some(events) = &mut self.events {
            // A closed channel: the job was deleted, which the next read finds out.
            let _ = events.changed().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut topics = self.watchers.topics();
        drop(self.events.take());
        if topics.get(&self.job).is_some_and(Topic::is_idle) {
            topics.remove(&self.job);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{ProgressStage, Time};

    #[test]
    fn a_topic_lasts_as_long_as_somebody_watches_or_ranks_prepare() {
        let (watchers, job) = (Watchers::default(), JobId::new());
        let topics = || watchers.topics().len();
        drop(watchers.subscribe(job));
        assert_eq!(topics(), 0);
        let change = |sequence, to| JobEvent {
            job,
            sequence,
            time: Time(1),
            body: EventBody::StateChange { from: None, to, reason: String::new() },
        };
        watchers.notify(&change(1, JobState::Queued));
        assert_eq!(topics(), 0);
        for rank in [0, 1, 0] {
            watchers.progressed(job, Progress { rank, stage: ProgressStage::Load, done: 0, total: 1 });
        }
        drop(watchers.subscribe(job));
        assert_eq!(topics(), 1, "a watcher that comes is to be told how far the ranks are");
        let watching = watchers.subscribe(job);
        watchers.notify(&change(2, JobState::Running));
        assert!(watching.ranks().borrow().is_empty(), "nobody prepares any longer");
        drop(watching);
        assert_eq!(topics(), 0);
        watchers.progressed(job, Progress { rank: 0, stage: ProgressStage::Draw, done: 0, total: 1 });
        watchers.notify(&change(3, JobState::Failed));
        assert_eq!(topics(), 0);
    }
}
