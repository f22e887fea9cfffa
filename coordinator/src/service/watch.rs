//! Watching a job: the store is read again whenever the loop says that there is more.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;

use super::error::Error;
use super::progress::RanksView;
use super::timings::{RingTimings, TimingsView};
use super::watchers::Subscription;
use crate::core::{Cluster, EventBody, JobEvent, Progress};
use crate::store::Store;

/// Events read at a time.
const PAGE: u32 = 256;

/// What a watcher is told.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// The next event.
    Event(JobEvent),
    /// Ranks that went on since the last such news; at least one.
    Progress(Vec<Progress>),
    /// What the steps of each rank take now.
    Timings(RingTimings),
}

/// The events of one job, in order, without gap or duplicate; and how far its ranks are.
pub struct Watch {
    store: Arc<dyn Store>,
    cluster: watch::Receiver<Arc<Cluster>>,
    subscription: Subscription,
    ranks: RanksView,
    timings: TimingsView,
    /// The last event that was handed out.
    after: u64,
    read: VecDeque<JobEvent>,
    /// There may be events in the store that were not read.
    stale: bool,
    over: bool,
}

impl Watch {
    pub(super) fn new(
        store: Arc<dyn Store>,
        cluster: watch::Receiver<Arc<Cluster>>,
        subscription: Subscription,
        after: u64,
    ) -> Self {
        let ranks = RanksView::new(subscription.ranks());
        let timings = TimingsView::new(subscription.timings());
        let read = VecDeque::new();
        Self { store, cluster, subscription, ranks, timings, after, read, stale: true, over: false }
    }

    /// What happens next; none after the event that ended the job, or when the job was deleted. Nothing is lost when
    /// it is dropped in mid-wait.
    ///
    /// # Errors
    /// The store's.
    pub async fn next(&mut self) -> Result<Option<News>, Error> {
        loop {
            while let Some(event) = self.read.pop_front() {
                self.after = event.sequence;
                self.over = event.body.ending().is_some();
                // Those are of an older version's time.
                if !matches!(event.body, EventBody::Progress(_)) {
                    return Ok(Some(News::Event(event)));
                }
            }
            if self.over {
                return Ok(None);
            }
            if self.stale {
                let goes_on = self.read_on().await?;
                if self.read.is_empty() && !goes_on {
                    return Ok(None);
                }
                continue;
            }
            tokio::select! {
                // The history first: a rank's progress belongs behind the events that came before it.
                biased;
                () = self.subscription.more() => self.stale = true,
                ranks = self.ranks.next() => return Ok(Some(News::Progress(ranks))),
                timings = self.timings.next() => return Ok(Some(News::Timings(timings))),
            }
        }
    }

    /// Reads the next events, if there are any. Whether more can come.
    async fn read_on(&mut self) -> Result<bool, Error> {
        // Both before reading: what is stored meanwhile wakes us again, and of a job that had ended by now the last
        // event is there.
        self.subscription.mark_seen();
        let goes_on = self.cluster.borrow().job(self.subscription.job).is_some();
        let events = self.store.events(self.subscription.job, self.after, PAGE).await?;
        self.stale = !goes_on || events.len() == PAGE as usize;
        self.read = events.into();
        Ok(goes_on)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::{JobState, LogLevel, Options, ProgressStage, Recovered, Time, Write};
    use crate::service::watchers::Watchers;
    use crate::store::conformance;

    #[tokio::test]
    async fn progress_that_an_older_version_kept_is_passed_over() {
        let job = conformance::queued_job(1);
        let (_folder, store) = conformance::temporary().await;
        let store = Arc::new(store);
        let progress =
            |done| EventBody::Progress(Progress { rank: 0, stage: ProgressStage::Fetch, done, total: 1000 });
        let end = EventBody::StateChange { from: None, to: JobState::Cancelled, reason: "enough".to_owned() };
        let mut bodies = vec![EventBody::note(LogLevel::Info, "first")];
        // More than are read at a time.
        bodies.extend((0..1000).map(progress));
        bodies.extend([EventBody::note(LogLevel::Info, "middle"), progress(1000), end]);
        let events = (1..).zip(bodies).map(|(sequence, body)| {
            Write::AppendEvent(JobEvent { job: job.id, sequence, time: Time(1), body })
        });
        let mut writes = vec![Write::InsertJob(job.clone())];
        writes.extend(events);
        store.commit(&writes).await.unwrap();
        // It ended: the state does not have it.
        let state = Cluster::recover(Options::default(), Recovered::default(), Time(1));
        let (_snapshot, cluster) = watch::channel(Arc::new(state));
        let mut watch = Watch::new(store, cluster, Watchers::default().subscribe(job.id), 0);
        let mut told = Vec::new();
        let all = async {
            while let Some(news) = watch.next().await.unwrap() {
                let News::Event(event) = news else { panic!("{news:?}") };
                told.push(event.sequence);
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
        assert_eq!(told, [1, 1002, 1004]);
    }
}
