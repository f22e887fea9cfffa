//! What a swarm did, and how its sessions ended.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

/// Counts of a whole swarm; all workers write into it.
#[derive(Debug, Default)]
pub struct Ledger {
    pub(super) heartbeats: AtomicU64,
    pub(super) assignments: AtomicU64,
    pub(super) steps_sent_again: AtomicU64,
    pub(super) steps_acknowledged: AtomicU64,
    pub(super) finished_jobs: AtomicU64,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// The last step that rank 0 of each job made.
    steps: HashMap<String, i64>,
    sessions_opened: u64,
    ended_with_coordinator: u64,
    ended_that_spoke: BTreeMap<String, u64>,
    ended_silent: BTreeMap<String, u64>,
    failed_attempts: BTreeMap<String, u64>,
}

/// A copy of all counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Heartbeats that were sent.
    pub heartbeats: u64,
    /// Ranks that were taken.
    pub assignments: u64,
    /// Steps that all ranks 0 made, each once.
    pub steps: u64,
    /// Step reports that were sent again after a reconnect.
    pub steps_sent_again: u64,
    /// Steps of which a worker heard that they are stored.
    pub steps_acknowledged: u64,
    /// Jobs whose rank 0 finished and was let go.
    pub finished_jobs: u64,
    /// Sessions that a welcome began.
    pub sessions_opened: u64,
    /// Sessions that ended because the coordinator was killed.
    pub ended_with_coordinator: u64,
    /// Sessions that the coordinator ended although their worker spoke in time, by reason.
    pub ended_that_spoke: BTreeMap<String, u64>,
    /// Sessions whose worker had been silent for the whole time that it may be: this machine was too slow for the swarm.
    pub ended_silent: BTreeMap<String, u64>,
    /// Tries that got no session, by reason. While the coordinator is away that is as it should be.
    pub failed_attempts: BTreeMap<String, u64>,
}

impl Ledger {
    /// A copy of all counts.
    pub fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let books = self.books();
        Counts {
            heartbeats: read(&self.heartbeats),
            assignments: read(&self.assignments),
            steps: books.steps.values().map(|step| step.unsigned_abs()).sum(),
            steps_sent_again: read(&self.steps_sent_again),
            steps_acknowledged: read(&self.steps_acknowledged),
            finished_jobs: read(&self.finished_jobs),
            sessions_opened: books.sessions_opened,
            ended_with_coordinator: books.ended_with_coordinator,
            ended_that_spoke: books.ended_that_spoke.clone(),
            ended_silent: books.ended_silent.clone(),
            failed_attempts: books.failed_attempts.clone(),
        }
    }

    /// The last step that rank 0 of a job made; 0: none.
    pub fn last_step(&self, job_id: &str) -> i64 {
        self.books().steps.get(job_id).copied().unwrap_or_default()
    }

    pub(super) fn step_made(&self, job_id: &str, step: i64) {
        let mut books = self.books();
        match books.steps.get_mut(job_id) {
            Some(last) => *last = step,
            None => {
                books.steps.insert(job_id.to_owned(), step);
            }
        }
    }

    pub(super) fn session_opened(&self) {
        self.books().sessions_opened += 1;
    }

    pub(super) fn attempt_failed(&self, reason: String) {
        *self.books().failed_attempts.entry(reason).or_default() += 1;
    }

    /// `silence`: since the worker's last word; `allowed`: how much the coordinator bears.
    pub(super) fn session_ended(&self, reason: String, silence: Duration, allowed: Duration) {
        let mut books = self.books();
        let ended = if silence < allowed { &mut books.ended_that_spoke } else { &mut books.ended_silent };
        *ended.entry(reason).or_default() += 1;
    }

    pub(super) fn ended_with_coordinator(&self) {
        self.books().ended_with_coordinator += 1;
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Sessions that ended although their worker spoke.
    pub fn lost_sessions(&self) -> u64 {
        self.ended_that_spoke.values().sum()
    }

    /// For programs.
    pub fn to_json(&self) -> Value {
        json!({
            "heartbeats": self.heartbeats,
            "assignments": self.assignments,
            "steps": self.steps,
            "steps_sent_again": self.steps_sent_again,
            "steps_acknowledged": self.steps_acknowledged,
            "finished_jobs": self.finished_jobs,
            "sessions_opened": self.sessions_opened,
            "ended_with_coordinator": self.ended_with_coordinator,
            "ended_that_spoke": self.ended_that_spoke,
            "ended_silent": self.ended_silent,
            "failed_attempts": self.failed_attempts,
        })
    }
}
