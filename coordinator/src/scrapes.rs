//! Metrics of workers, asked for through their sessions.
//!
//! Only the coordinator has an address and a certificate that everybody knows. So whoever watches the cluster asks it alone: for
//! the list of workers (Prometheus' HTTP service discovery), and for the metrics of each. A worker whose session is gone stays in
//! the list for a day, so that it is seen to be missing.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use ringtune_shared::ids::WorkerId;
use serde::Serialize;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

/// How long a worker may take. Prometheus waits for 10 seconds, unless it is told otherwise.
const LIMIT: Duration = Duration::from_secs(9);
/// Questions to one worker that may wait for their answers.
const MOST_WAITING: usize = 16;
/// How long one that is gone is listed.
const LISTED: Duration = Duration::from_secs(24 * 3600);
/// Workers that are remembered.
const MOST_WORKERS: usize = 10_000;

/// Why there are no metrics of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nobody knows it, or its release cannot be asked.
    #[error(
        "no such worker, or one of an earlier release, which only its own port gives metrics of; `ringtune workers` lists all"
    )]
    Unknown,
    /// It has no session.
    #[error("the worker is not connected")]
    Gone,
    /// Too many ask.
    #[error("{MOST_WAITING} others wait for this worker's metrics")]
    Busy,
    /// It does not answer.
    #[error("the worker did not answer within {} s", LIMIT.as_secs())]
    Late,
}

/// The sessions of workers, to ask for their metrics. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Scrapes(Arc<Mutex<HashMap<WorkerId, ScrapedWorker>>>);

#[derive(Debug)]
struct ScrapedWorker {
    host: String,
    line: Option<Arc<Line>>,
    /// When it last came or went.
    since: Instant,
}

/// A session's questions and answers.
#[derive(Debug)]
struct Line {
    questions: mpsc::Sender<u64>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    answers: HashMap<u64, oneshot::Sender<String>>,
}

/// The answering side of an open session; dropped with it.
#[derive(Debug)]
pub(crate) struct Answering {
    scrapes: Scrapes,
    worker: WorkerId,
    line: Arc<Line>,
}

/// One of a list of targets, as Prometheus' `http_sd_configs` reads it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Target {
    targets: [String; 1],
    labels: Labels,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Labels {
    __metrics_path__: String,
    /// Labels of each series: host and worker.
    instance: String,
    host: String,
    worker: String,
}

impl Scrapes {
    /// A worker's session begins: the questions that it is to be asked, and who takes its answers. One that there was before is over.
    pub(crate) fn open(&self, worker: WorkerId, host: &str) -> (mpsc::Receiver<u64>, Answering) {
        let (questions, asked) = mpsc::channel(MOST_WAITING);
        let line = Arc::new(Line { questions, waiting: Mutex::default() });
        let known =
            ScrapedWorker { host: host.to_owned(), line: Some(Arc::clone(&line)), since: Instant::now() };
        let mut all = self.all();
        forget(&mut all);
        all.insert(worker, known);
        drop(all);
        (asked, Answering { scrapes: self.clone(), worker, line })
    }

    /// A worker's metrics, in Prometheus' text format.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub(crate) async fn of(&self, worker: WorkerId) -> Result<String, Error> {
        let line = match self.all().get(&worker) {
            None => return Err(Error::Unknown),
            Some(known) => known.line.clone().ok_or(Error::Gone)?,
        };
        let (number, answer) = line.ask()?;
        let _asked = Question { line: Arc::downgrade(&line), number };
        // Those who wait do not keep a line that is over.
        drop(line);
        match timeout(LIMIT, answer).await {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(_)) => Err(Error::Gone),
            Err(_) => Err(Error::Late),
        }
    }

    /// All workers that can be asked, or could until a day ago. `coordinator`: HOST:PORT by which whoever asks reaches this HTTP port.
    pub(crate) fn targets(&self, coordinator: &str) -> Vec<Target> {
        let mut all = self.all();
        forget(&mut all);
        let target = |(worker, known): (&WorkerId, &ScrapedWorker)| Target {
            targets: [coordinator.to_owned()],
            labels: Labels {
                __metrics_path__: format!("/metrics/workers/{worker}"),
                instance: format!("{}/{worker}", known.host),
                host: known.host.clone(),
                worker: worker.to_string(),
            },
        };
        let mut targets: Vec<Target> = all.iter().map(target).collect();
        drop(all);
        targets.sort_by(|one, other| one.labels.instance.cmp(&other.labels.instance));
        targets
    }

    fn all(&self) -> MutexGuard<'_, HashMap<WorkerId, ScrapedWorker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets who has been gone for long, and the one that is gone for longest where there are too many.
fn forget(all: &mut HashMap<WorkerId, ScrapedWorker>) {
    all.retain(|_, known| known.line.is_some() || known.since.elapsed() < LISTED);
    if all.len() >= MOST_WORKERS {
        let gone = all.iter().filter(|(_, known)| known.line.is_none());
        if let Some(oldest) = gone.min_by_key(|(_, known)| known.since).map(|(worker, _)| *worker) {
            all.remove(&oldest);
        }
    }
}

impl Line {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> Result<(u64, oneshot::Receiver<String>), Error> {
        let mut waiting = self.waiting();
        if waiting.answers.len() >= MOST_WAITING {
            return Err(Error::Busy);
        }
        let number = waiting.last + 1;
        self.questions.try_send(number).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Error::Busy,
            mpsc::error::TrySendError::Closed(_) => Error::Gone,
        })?;
        let (reply, answer) = oneshot::channel();
        waiting.last = number;
        waiting.answers.insert(number, reply);
        Ok((number, answer))
    }
}

/// A question; nobody waits for its answer once this is dropped.
struct Question {
    line: Weak<Line>,
    number: u64,
}

impl Drop for Question {
    fn drop(&mut self) {
        if let Some(line) = self.line.upgrade() {
            line.waiting().answers.remove(&self.number);
        }
    }
}

impl Answering {
    /// Hands a worker's answer to the caller that asked. An answer without a question is dropped.
    pub(crate) fn answer(&self, number: u64, text: String) {
        if let Some(reply) = self.line.waiting().answers.remove(&number) {
            let _ = reply.send(text);
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        // Whoever waits is told at once, and not when all of them have gone.
        self.line.waiting().answers.clear();
        let mut all = self.scrapes.all();
        if let Some(known) = all.get_mut(&self.worker)
            && known.line.as_ref().is_some_and(|line| Arc::ptr_eq(line, &self.line))
        {
            (known.line, known.since) = (None, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_worker_is_asked_and_its_answer_goes_to_whoever_asked() {
        let scrapes = Scrapes::default();
        let worker = WorkerId::new();
        assert_eq!(scrapes.of(worker).await, Err(Error::Unknown));
        let (mut asked, answering) = scrapes.open(worker, "vm");
        let both = async { tokio::join!(scrapes.of(worker), scrapes.of(worker)) };
        let worker_says = async {
            let numbers = [asked.recv().await.unwrap(), asked.recv().await.unwrap()];
            answering.answer(99, "nobody's".to_owned());
            for number in numbers.into_iter().rev() {
                answering.answer(number, format!("metric {number}"));
            }
        };
        let (answers, ()) = tokio::join!(both, worker_says);
        assert_eq!(answers, (Ok("metric 1".to_owned()), Ok("metric 2".to_owned())));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_gone_is_told_at_once_and_listed_for_a_day() {
        let scrapes = Scrapes::default();
        let worker = WorkerId::new();
        let (asked, answering) = scrapes.open(worker, "vm");
        assert_eq!(scrapes.of(worker).await, Err(Error::Late), "it does not answer");
        for _ in 1..MOST_WAITING {
            let (_, answer) = answering.line.ask().unwrap();
            drop(answer);
        }
        assert_eq!(scrapes.of(worker).await, Err(Error::Busy));
        drop(asked);
        answering.line.waiting().answers.clear();
        assert_eq!(scrapes.of(worker).await, Err(Error::Gone));
        let (mut asked, answering) = scrapes.open(worker, "vm");
        let ends = async {
            asked.recv().await;
            drop(answering);
        };
        assert_eq!(tokio::join!(scrapes.of(worker), ends).0, Err(Error::Gone));
        assert_eq!(scrapes.of(worker).await, Err(Error::Gone));
        tokio::time::advance(LISTED - Duration::from_secs(60)).await;
        assert_eq!(scrapes.targets("c:7071").len(), 1);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(scrapes.targets("c:7071"), []);
        assert_eq!(scrapes.of(worker).await, Err(Error::Unknown));
    }

    #[tokio::test]
    async fn the_end_of_an_older_session_does_not_end_the_newer_one() {
        let scrapes = Scrapes::default();
        let worker = WorkerId::new();
        let (_, older) = scrapes.open(worker, "vm");
        let (mut asked, newer) = scrapes.open(worker, "vm");
        drop(older);
        let says = async { newer.answer(asked.recv().await.unwrap(), "x".to_owned()) };
        assert_eq!(tokio::join!(scrapes.of(worker), says).0, Ok("x".to_owned()));
        let listed = serde_json::to_value(scrapes.targets("10.0.0.1:7071")).unwrap();
        let expected = serde_json::json!([{
            "targets": ["10.0.0.1:7071"],
            "labels": {
                "__metrics_path__": format!("/metrics/workers/{worker}"),
                "instance": format!("vm/{worker}"),
                "host": "vm",
                "worker": worker.to_string(),
            },
        }]);
        assert_eq!(listed, expected);
    }
}
