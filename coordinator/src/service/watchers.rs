//! Who waits for news of which job. Telling them never waits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringtune_shared::ids::{Epoch, JobId};
use tokio::sync::{broadcast, watch};

use super::progress::Ranks;
use super::timings::{RingTimings, Timings};
use crate::core::{EventBody, JobEvent, JobState, Progress, RankTiming};

/// Events that a watcher of many jobs may be behind; one that is further behind has to begin again.
const FEED: usize = 4096;

/// What there is to know about one job.
struct Topic {
    /// The newest event's sequence number.
    events: watch::Sender<u64>,
    ranks: watch::Sender<Ranks>,
    timings: watch::Sender<Timings>,
}

impl Topic {
    fn new() -> Self {
        Self {
            events: watch::Sender::new(0),
            ranks: watch::Sender::default(),
            timings: watch::Sender::default(),
        }
    }

    /// Nobody watches, and there is nothing that somebody who comes could be told.
    fn is_idle(&self) -> bool {
        self.events.receiver_count() == 0
            && self.ranks.borrow().is_empty()
            && self.timings.borrow().is_empty()
    }

    /// Changes what is known of the ranks' steps, and counts the rings with a straggler.
    fn change_timings(&self, stragglers: &AtomicUsize, change: impl FnOnce(&mut Timings) -> bool) {
        self.timings.send_if_modified(|timings| {
            let before = timings.straggler().is_some();
            let changed = change(timings);
            match (before, timings.straggler().is_some()) {
                (false, true) => drop(stragglers.fetch_add(1, Ordering::Relaxed)),
                (true, false) => drop(stragglers.fetch_sub(1, Ordering::Relaxed)),
                _ => (),
            }
            changed
        });
    }
}

/// What happens to any job.
#[derive(Debug, Clone)]
pub(super) enum Happened {
    /// An event that is stored.
    Event(Arc<JobEvent>),
    /// It was deleted.
    Deleted {
        job: JobId,
        /// Whose it was.
        owner: Arc<str>,
    },
}

/// All watchers, and the ranks' progress and timings. Cheap to clone.
#[derive(Clone)]
pub(super) struct Watchers {
    topics: Arc<Mutex<HashMap<JobId, Topic>>>,
    feed: broadcast::Sender<Happened>,
    /// Rings with a straggler; changed while the topics are locked.
    stragglers: Arc<AtomicUsize>,
}

impl Default for Watchers {
    fn default() -> Self {
        Self { topics: Arc::default(), feed: broadcast::Sender::new(FEED), stragglers: Arc::default() }
    }
}

impl Watchers {
    pub(super) fn subscribe(&self, job: JobId) -> Subscription {
        let mut topics = self.topics();
        let topic = topics.entry(job).or_insert_with(Topic::new);
        let (events, ranks) = (topic.events.subscribe(), topic.ranks.subscribe());
        let timings = topic.timings.subscribe();
        Subscription { events: Some(events), ranks, timings, job, watchers: self.clone() }
    }

    /// All that happens to all jobs from now on.
    pub(super) fn feed(&self) -> broadcast::Receiver<Happened> {
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
        self.tell(|| Happened::Event(Arc::new(event.clone())));
    }

    fn tell(&self, what: impl FnOnce() -> Happened) {
        if self.feed.receiver_count() > 0 {
            // Fails only where the last of them left just now.
            let _ = self.feed.send(what());
        }
    }

    /// A rank of an active job went on.
    pub(super) fn progressed(&self, job: JobId, progress: Progress) {
        let mut topics = self.topics();
        let topic = topics.entry(job).or_insert_with(Topic::new);
        topic.ranks.send_modify(|ranks| ranks.put(progress));
    }

    /// A rank of an active job, whose ring has so many, says what its steps take.
    pub(super) fn timed(&self, job: JobId, members: usize, timing: RankTiming) {
        let mut topics = self.topics();
        let topic = topics.entry(job).or_insert_with(Topic::new);
        topic.change_timings(&self.stragglers, |timings| {
            timings.put(members, timing);
            true
        });
    }

    /// What the steps of its ranks take now, as far as they say so.
    pub(super) fn timings(&self, job: JobId) -> RingTimings {
        self.topics().get(&job).map(|topic| topic.timings.borrow().now()).unwrap_or_default()
    }

    /// The job has a ring of this epoch now, or none: what ranks of another one said of their steps is over.
    pub(super) fn has_ring(&self, job: JobId, epoch: Option<Epoch>) {
        let mut topics = self.topics();
        if let Some(topic) = topics.get(&job) {
            topic.change_timings(&self.stragglers, |timings| timings.keep_only(epoch));
            if topic.is_idle() {
                topics.remove(&job);
            }
        }
    }

    /// Rings with a rank for which the others wait.
    pub(super) fn stragglers(&self) -> usize {
        self.stragglers.load(Ordering::Relaxed)
    }

    /// The job is deleted: nobody need wait any longer.
    pub(super) fn forget(&self, job: JobId, owner: &str) {
        self.has_ring(job, None);
        self.topics().remove(&job);
        self.tell(|| Happened::Deleted { job, owner: owner.into() });
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
    timings: watch::Receiver<Timings>,
    pub(super) job: JobId,
    watchers: Watchers,
}

impl Subscription {
    pub(super) fn ranks(&self) -> watch::Receiver<Ranks> {
        self.ranks.clone()
    }

    pub(super) fn timings(&self) -> watch::Receiver<Timings> {
        self.timings.clone()
    }

    /// Marks everything up to now as seen.
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
    use super::{super::timings, *};
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

    #[test]
    fn timings_are_over_with_their_ring_and_its_straggler_with_them() {
        let (watchers, job) = (Watchers::default(), JobId::new());
        let timing = |rank, compute_seconds| timings::tests::timing(1, rank, compute_seconds);
        for _ in 0..10 {
            watchers.timed(job, 2, timing(0, 1.0));
            watchers.timed(job, 2, timing(1, 2.0));
        }
        assert_eq!(watchers.stragglers(), 1);
        assert_eq!(watchers.timings(job).ranks, [timing(0, 1.0), timing(1, 2.0)]);
        watchers.has_ring(job, Some(Epoch::FIRST));
        drop(watchers.subscribe(job));
        assert_eq!((watchers.stragglers(), watchers.topics().len()), (1, 1));
        watchers.has_ring(job, Some(Epoch(2)));
        assert_eq!(watchers.timings(job), RingTimings::default());
        assert_eq!((watchers.stragglers(), watchers.topics().len()), (0, 0));
    }
}
