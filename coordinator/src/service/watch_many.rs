//! Watching many jobs from now on: each job as it is, then its events as the loop stores them.
//!
//! The store is read for jobs that have ended only. Events come over a channel that forgets the oldest: a reader that
//! is too slow has to begin again, and slows down nobody.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use ringtune_shared::ids::JobId;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;

use super::error::Error;
use super::outlooks::Outlooks;
use super::watchers::Happened;
use crate::core::{BEHIND_ANOTHER, Cluster, Job, JobEvent, JobState, Waiting};
use crate::store::Store;

/// What a watcher of many jobs is told.
#[derive(Debug, Clone, PartialEq)]
pub enum ManyNews {
    /// A job as it is; stands for all its events so far.
    Job(Arc<Job>),
    /// The next event of a job that was told.
    Event(Arc<JobEvent>),
    /// A job is there no more.
    Deleted(JobId),
}

/// Some jobs, or all.
pub struct WatchMany {
    store: Arc<dyn Store>,
    cluster: watch::Receiver<Arc<Cluster>>,
    outlooks: Outlooks,
    feed: broadcast::Receiver<Happened>,
    /// Those that were named and have not ended; none: all are watched.
    open: Option<HashSet<JobId>>,
    /// The newest event that was told of each job.
    told: HashMap<JobId, u64>,
    /// Jobs of others are not there.
    owner: Option<String>,
    /// Jobs of others that are active, of which there was news.
    others: HashSet<JobId>,
    /// Jobs to be told first.
    first: VecDeque<Arc<Job>>,
}

impl WatchMany {
    /// `feed`: subscribed before this call. `named`: none means all. `owner`: jobs of others are not there.
    pub(super) async fn open(
        store: Arc<dyn Store>,
        cluster: watch::Receiver<Arc<Cluster>>,
        outlooks: Outlooks,
        feed: broadcast::Receiver<Happened>,
        named: &[JobId],
        owner: Option<&str>,
    ) -> Result<Self, Error> {
        let mut watch = Self {
            store,
            cluster,
            outlooks,
            feed,
            open: None,
            told: HashMap::new(),
            owner: owner.map(str::to_owned),
            others: HashSet::new(),
            first: VecDeque::new(),
        };
        if named.is_empty() {
            let snapshot = watch.cluster.borrow().clone();
            let waiting = watch.outlooks.waiting(&snapshot);
            let jobs = snapshot.jobs().filter(|job| watch.sees(job));
            watch.first = jobs.map(|job| watch.explained(job, &waiting)).collect();
        } else {
            let mut open = HashSet::new();
            for id in named {
                let job = watch.find(*id).await?.ok_or(Error::NoSuchJob(*id))?;
                if !job.state.is_terminal() && !open.insert(*id) {
                    continue;
                }
                watch.first.push_back(job);
            }
            watch.open = Some(open);
        }
        watch.told = watch.first.iter().map(|job| (job.id, job.last_sequence)).collect();
        Ok(watch)
    }

    /// What happens next; none when all jobs that were named have ended. Nothing is lost when it is dropped in
    /// mid-wait.
    ///
    /// # Errors
    /// [`Error::TooSlow`]; the store's.
    pub async fn next(&mut self) -> Result<Option<ManyNews>, Error> {
        loop {
            if let Some(job) = self.first.pop_front() {
                return Ok(Some(ManyNews::Job(job)));
            }
            if self.open.as_ref().is_some_and(HashSet::is_empty) {
                return Ok(None);
            }
            let event = match self.feed.recv().await {
                Ok(Happened::Event(event)) => event,
                // Jobs that were named are not watched any more once they have ended.
                Ok(Happened::Deleted { job, owner }) if self.open.is_none() && self.is_theirs(&owner) => {
                    return Ok(Some(ManyNews::Deleted(job)));
                }
                Ok(Happened::Deleted { .. }) => continue,
                Err(RecvError::Lagged(missed)) => return Err(Error::TooSlow { missed }),
                Err(RecvError::Closed) => return Ok(None),
            };
            if self.open.as_ref().is_some_and(|open| !open.contains(&event.job)) {
                continue;
            }
            let ends = event.body.ending().is_some();
            let news = match self.told.get_mut(&event.job) {
                Some(told) if event.sequence <= *told => None,
                Some(told) => {
                    *told = event.sequence;
                    Some(ManyNews::Event(event.clone()))
                }
                None if self.others.contains(&event.job) => None,
                None => {
                    let new = self.new_job(event.job).await?;
                    self.first.extend(new);
                    None
                }
            };
            if ends {
                self.others.remove(&event.job);
                self.told.remove(&event.job);
                if let Some(open) = &mut self.open {
                    open.remove(&event.job);
                }
            }
            if news.is_some() {
                return Ok(news);
            }
        }
    }

    /// A job that came after this watch, with its events up to now; none if it was deleted already.
    async fn new_job(&mut self, id: JobId) -> Result<Option<Arc<Job>>, Error> {
        let job = self.find(id).await?;
        match &job {
            Some(job) => drop(self.told.insert(id, job.last_sequence)),
            None if self.owner.is_some() => drop(self.others.insert(id)),
            None => {}
        }
        Ok(job)
    }

    /// A job with what it waits for now, which is not kept with it.
    fn explained(&self, job: &Arc<Job>, waiting: &Waiting<'_>) -> Arc<Job> {
        if job.state != JobState::Queued {
            return job.clone();
        }
        let mut job = Job::clone(job);
        waiting.explain(&mut job);
        if job.waits_behind && self.owner.is_some() {
            job.reason = BEHIND_ANOTHER.to_owned();
            job.wait.iter_mut().for_each(|wait| wait.behind = None);
        }
        Arc::new(job)
    }

    fn sees(&self, job: &Job) -> bool {
        self.is_theirs(&job.queue.owner)
    }

    /// Whether jobs of this owner are told.
    fn is_theirs(&self, owner: &str) -> bool {
        self.owner.as_ref().is_none_or(|only| *only == owner)
    }

    async fn find(&self, id: JobId) -> Result<Option<Arc<Job>>, Error> {
        let snapshot = self.cluster.borrow().clone();
        let found = match snapshot.job(id) {
            Some(job) => Some(self.explained(job, &self.outlooks.waiting(&snapshot))),
            None => self.store.job(id).await?.map(Arc::new),
        };
        Ok(found.filter(|job| self.sees(job)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{EventBody, LogLevel, Options, Recovered, Time};
    use crate::service::watchers::Watchers;
    use crate::store::conformance;

    #[tokio::test]
    async fn a_reader_that_is_too_slow_is_told_and_delays_nobody() {
        let job = conformance::queued_job(1);
        let recovered = Recovered { jobs: vec![(*job).clone()], last_number: 1, ..Recovered::default() };
        let state = Arc::new(Cluster::recover(Options::default(), recovered, Time(1)));
        let (_snapshot, cluster) = watch::channel(state);
        let (_folder, store) = conformance::temporary().await;
        let store = Arc::new(store);
        let watchers = Watchers::default();
        let open = || {
            let outlooks = Outlooks::default();
            WatchMany::open(store.clone(), cluster.clone(), outlooks, watchers.feed(), &[], None)
        };
        let (mut quick, mut slow) = (open().await.unwrap(), open().await.unwrap());
        for watch in [&mut quick, &mut slow] {
            assert!(matches!(watch.next().await, Ok(Some(ManyNews::Job(told))) if told.id == job.id));
        }
        for sequence in 1..=20_000 {
            let body = EventBody::note(LogLevel::Info, "x");
            let event = JobEvent { job: job.id, sequence, time: Time(1), body };
            watchers.notify(&event);
            assert_eq!(quick.next().await.unwrap(), Some(ManyNews::Event(Arc::new(event))));
        }
        assert!(matches!(slow.next().await, Err(Error::TooSlow { missed }) if missed > 10_000));
    }
}
