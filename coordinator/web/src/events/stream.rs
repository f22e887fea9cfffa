//! One stream of events: the thin loop around what decides.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use prost_reflect::DynamicMessage;
use ringtune_security::Closing;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use uuid::Uuid;

use super::history::{History, Said};
use super::jobs::Jobs;
use super::text::{self, Asked};
use super::waiting::Waiting;
use super::watches::{Answers, Job, News, Watches, news, said};
use crate::answer;

/// How long a stream lives: less than its connection, which does not live for ever either.
const LIFE: Duration = Duration::from_secs(240);
/// Between two messages of jobs.
const PACE: Duration = Duration::from_millis(500);
/// The first jobs, where they fill no message.
const FIRST: Duration = Duration::from_millis(30);
/// Between two looks at the cluster.
const CLUSTER: Duration = Duration::from_secs(2);
/// A stream that has been silent for so long says that it lives.
const SILENCE: Duration = Duration::from_secs(10);

type Heard = Result<Option<DynamicMessage>, Status>;

/// See above.
pub(super) struct Stream {
    watches: Watches,
    all: Option<Answers>,
    one: Option<Answers>,
    /// What is still wanted: of the job's events those that were not heard yet.
    asked: Asked,
    /// The job that was asked for is watched, or was to its end.
    begun: bool,
    jobs: Jobs<Job>,
    waiting: Waiting,
    history: History,
    cluster: String,
    /// Goes out next.
    ready: VecDeque<Bytes>,
    pace: Instant,
    look: Instant,
    silent: Instant,
    life: Instant,
    closing: Closing,
    shutdown: CancellationToken,
    over: bool,
    _place: OwnedSemaphorePermit,
}

/// What happens next.
enum Next {
    All(Heard),
    One(Heard),
    Time,
    End(&'static str),
}

impl Stream {
    pub(super) fn new(
        watches: Watches,
        all: Answers,
        asked: Asked,
        closing: Closing,
        shutdown: CancellationToken,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let now = Instant::now();
        Self {
            watches,
            all: Some(all),
            one: None,
            asked,
            begun: false,
            jobs: Jobs::new(),
            waiting: Waiting::default(),
            history: History::default(),
            cluster: String::new(),
            ready: VecDeque::from([Bytes::from_static(text::RETRY.as_bytes())]),
            pace: now + FIRST,
            look: now,
            silent: now + SILENCE,
            life: now + LIFE,
            closing,
            shutdown,
            over: false,
            _place: place,
        }
    }

    /// The messages, to the last one.
    pub(super) fn messages(self) -> impl futures::Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
        futures::stream::unfold(Box::new(self), |mut stream| async {
            let message = stream.next().await?;
            Some((Ok(message), stream))
        })
    }

    /// Begins to watch the job that was asked for.
    async fn open_one(&mut self) {
        let Some(id) = self.asked.job.clone() else { return };
        match self.watches.job(&id, self.asked.after).await {
            Ok(watch) => self.one = Some(watch),
            Err(status) => self.one_failed(&status),
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.begun {
                self.begun = true;
                self.open_one().await;
            }
            if let Some(message) = self.ready.pop_front() {
                self.silent = Instant::now() + SILENCE;
                return Some(message);
            }
            if self.over {
                return None;
            }
            if let Err(status) = self.due(Instant::now()).await {
                self.failed(&status);
            } else if self.ready.is_empty() {
                match self.wait().await {
                    Next::All(heard) => self.hear_all(heard),
                    Next::One(heard) => self.hear_one(heard),
                    Next::Time => {}
                    Next::End(reason) => self.end(reason),
                }
            }
        }
    }

    /// Does what it is time for.
    async fn due(&mut self, now: Instant) -> Result<(), Status> {
        if now >= self.look {
            self.look = now + CLUSTER;
            match self.watches.cluster().await {
                Ok(cluster) if cluster != self.cluster => {
                    self.ready.push_back(text::event("cluster", None, &cluster));
                    self.cluster = cluster;
                    self.waiting.changed();
                }
                Err(status) if is_final(&status) => return Err(status),
                // The next look may find it.
                Ok(_) | Err(_) => {}
            }
            // What its ring is like changes without an event.
            if let (Some(_), Some(Ok(id))) = (&self.one, self.asked.job.as_deref().map(str::parse)) {
                self.jobs.changed(id);
            }
            self.ask_why_they_wait().await?;
        }
        if now >= self.pace || self.jobs.is_full() {
            self.pace = now + PACE;
            self.ready.extend(self.history.flush());
            self.tell_jobs().await?;
        }
        if now >= self.silent && self.ready.is_empty() {
            self.ready.push_back(Bytes::from_static(text::ALIVE.as_bytes()));
        }
        // The watch of all jobs broke off: there was too much news for a slow reader, or he rested for too long.
        if self.all.is_none() {
            match self.watches.jobs(&[]).await {
                Ok(watch) => {
                    self.jobs.missed();
                    // Some may have been deleted: the page has to look what there is.
                    self.ready.push_back(text::event("missed", None, "{}"));
                    self.all = Some(watch);
                }
                Err(status) if is_final(&status) => return Err(status),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Looks whether jobs wait for something else than was told.
    async fn ask_why_they_wait(&mut self) -> Result<(), Status> {
        let ids = self.waiting.turn();
        match self.watches.look_up(&ids).await {
            Ok(found) => {
                let is_found = |id: &Uuid| found.iter().any(|job| job.id == *id);
                ids.iter().filter(|id| !is_found(id)).for_each(|id| self.waiting.gone(*id));
                for job in found {
                    if self.waiting.told(job.id, !job.ended, &job.json) {
                        self.jobs.came(job.id, job.ended, job);
                    }
                }
                Ok(())
            }
            Err(status) if is_final(&status) => Err(status),
            // The next round does it.
            Err(_) => Ok(()),
        }
    }

    async fn tell_jobs(&mut self) -> Result<(), Status> {
        if self.jobs.is_empty() {
            return Ok(());
        }
        let portion = self.jobs.next();
        let found = match self.watches.look_up(&portion.changed).await {
            Ok(found) => found,
            Err(status) if is_final(&status) => return Err(status),
            // Later, then.
            Err(_) => {
                portion.changed.iter().for_each(|id| self.jobs.changed(*id));
                Vec::new()
            }
        };
        if found.len() < portion.changed.len() {
            portion.changed.iter().for_each(|id| self.jobs.gone(*id));
        }
        found.iter().for_each(|job| self.jobs.seen(job.id, job.ended));
        let told = portion.whole.into_iter().chain(found).map(|job| {
            self.waiting.told(job.id, !job.ended, &job.json);
            job.json
        });
        let all: Vec<String> = told.collect();
        if !all.is_empty() {
            self.ready.push_back(text::event("jobs", None, &text::list("jobs", &all)));
        }
        if !portion.deleted.is_empty() {
            portion.deleted.iter().for_each(|id| self.waiting.gone(*id));
            let ids: Vec<String> = portion.deleted.iter().map(|id| format!("\"{id}\"")).collect();
            self.ready.push_back(text::event("deleted", None, &text::list("jobIds", &ids)));
        }
        Ok(())
    }

    async fn wait(&mut self) -> Next {
        let paced = !self.jobs.is_empty() || !self.history.is_empty();
        let times = [Some(self.look), Some(self.silent), paced.then_some(self.pace)];
        let time = times.into_iter().flatten().min().unwrap_or(self.look);
        tokio::select! {
            biased;
            () = self.closing.closing() => {
                Next::End(if self.shutdown.is_cancelled() { "shutdown" } else { "time" })
            }
            () = self.shutdown.cancelled() => Next::End("shutdown"),
            () = sleep_until(self.life) => Next::End("time"),
            () = sleep_until(time) => Next::Time,
            heard = message(&mut self.one) => Next::One(heard),
            heard = message(&mut self.all) => Next::All(heard),
        }
    }

    fn hear_all(&mut self, heard: Heard) {
        let heard = heard.and_then(|message| message.map(|message| news(&message)).transpose());
        match heard {
            Ok(Some(News::Job(job))) => self.jobs.came(job.id, job.ended, job),
            Ok(Some(News::Changed(id))) => self.jobs.changed(id),
            Ok(Some(News::Deleted(id))) => self.jobs.deleted(id),
            Ok(Some(News::Nothing)) => {}
            Err(status) if broke_off(&status) => self.all = None,
            Ok(None) => self.end("shutdown"),
            Err(status) => self.failed(&status),
        }
    }

    fn hear_one(&mut self, heard: Heard) {
        match heard.and_then(|message| message.map(|message| said(&message)).transpose()) {
            Ok(Some(Some(said))) => {
                if let Said::Event { sequence, .. } = &said {
                    self.asked.after = self.asked.after.max(*sequence);
                }
                self.ready.extend(self.history.hear(said));
            }
            Ok(Some(None)) => {}
            // The job ended.
            Ok(None) => {
                self.one = None;
                self.ready.extend(self.history.flush());
            }
            // It goes on after the last event that was heard.
            Err(status) if broke_off(&status) => (self.one, self.begun) = (None, false),
            Err(status) => self.one_failed(&status),
        }
    }

    /// The watch of one job failed: a page hears why, and of all else.
    fn one_failed(&mut self, status: &Status) {
        self.one = None;
        if is_final(status) {
            return self.failed(status);
        }
        self.ready.extend(self.history.flush());
        self.ready.push_back(text::event("error", None, &answer::error_json(status)));
    }

    /// The stream cannot go on.
    fn failed(&mut self, status: &Status) {
        match status.code() {
            Code::Unauthenticated | Code::PermissionDenied => self.end("login"),
            _ if self.shutdown.is_cancelled() => self.end("shutdown"),
            _ => {
                self.ready.push_back(text::event("error", None, &answer::error_json(status)));
                self.end("error");
            }
        }
    }

    fn end(&mut self, reason: &str) {
        self.ready.extend(self.history.flush());
        self.ready.push_back(text::end(reason));
        (self.all, self.one, self.over) = (None, None, true);
    }
}

/// Whether a watch that was under way only ended because too little was read of it: it is read while the browser takes what
/// it is sent, and no longer.
fn broke_off(status: &Status) -> bool {
    matches!(status.code(), Code::Aborted | Code::DeadlineExceeded)
}

/// Whether no later try helps.
fn is_final(status: &Status) -> bool {
    matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied | Code::Unavailable)
}

async fn message(watch: &mut Option<Answers>) -> Heard {
    match watch {
        Some(watch) => watch.message().await,
        None => std::future::pending().await,
    }
}
