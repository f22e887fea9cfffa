//! What jobs wait for that the coordinator cannot do just now: of the moment, never stored, as what they wait for may be that
//! something can be stored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringtune_shared::{condition::Condition, ids::JobId};
use tokio::time::Instant;

use crate::core::Job;

/// Ranks ask again every few seconds: who has not for so long waits no more.
const FRESH: Duration = Duration::from_secs(20);

/// What becomes of a job that waits for the coordinator alone.
const BY_ITSELF: &str = "everything goes on by itself";

/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Waits(Arc<Mutex<WaitReasons>>);

#[derive(Debug, Default)]
struct WaitReasons {
    /// Why nothing can be stored.
    store: Option<String>,
    /// What ranks of a job were told last, and when.
    jobs: HashMap<JobId, (String, Instant)>,
}

impl Waits {
    /// Ranks of a job are told to wait for this, in words.
    pub fn told(&self, job: JobId, condition: Condition, why: &str) {
        let then = match condition {
            Condition::OverQuota => "it goes on once its owner makes room",
            Condition::DiskFull
            | Condition::DiskLow
            | Condition::ContentsFull
            | Condition::StoreFailing
            | Condition::FilesFailing
            | Condition::Busy => BY_ITSELF,
        };
        let mut known = self.known();
        // As many as there are jobs with workers, at most, and those that were a moment ago.
        known.jobs.retain(|_, (_, at)| at.elapsed() < FRESH);
        known.jobs.insert(job, (format!("{why}; {then}"), Instant::now()));
    }

    /// Something of the job was done.
    pub fn went_on(&self, job: JobId) {
        self.known().jobs.remove(&job);
    }

    /// Nothing can be stored, for this reason; none: it can.
    pub(super) fn store_fails(&self, why: Option<String>) {
        self.known().store = why.map(|why| format!("{why}; {BY_ITSELF}"));
    }

    /// Says of a job that has not ended what it waits for, before what it does otherwise.
    pub(super) fn explain(&self, job: &mut Job) {
        let known = self.known();
        let of_job = known.jobs.get(&job.id).filter(|(_, at)| at.elapsed() < FRESH).map(|(why, _)| why);
        let why = known.store.as_ref().or(of_job).filter(|_| !job.state.is_terminal());
        if let Some(why) = why {
            job.reason = format!("waiting: {why} ({})", job.reason);
        }
    }

    fn known(&self) -> MutexGuard<'_, WaitReasons> {
        // Each change is one insertion or removal.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::JobState;
    use crate::store::conformance::queued_job;

    #[tokio::test(start_paused = true)]
    async fn a_job_says_what_it_waits_for_as_long_as_it_is_told_so() {
        let (waits, job) = (Waits::default(), queued_job(1));
        let reason = |state| {
            let mut job = Job { state, reason: "training on 1 rank(s)".to_owned(), ..(*job).clone() };
            waits.explain(&mut job);
            job.reason
        };
        assert_eq!(reason(JobState::Running), "training on 1 rank(s)");
        waits.told(job.id, Condition::DiskLow, "the disk is low");
        let expected = "waiting: the disk is low; everything goes on by itself (training on 1 rank(s))";
        assert_eq!(reason(JobState::Running), expected);
        assert_eq!(reason(JobState::Failed), "training on 1 rank(s)");
        waits.store_fails(Some("the disk is full".to_owned()));
        assert!(reason(JobState::Running).starts_with("waiting: the disk is full; "));
        waits.store_fails(None);
        assert_eq!(reason(JobState::Running), expected);
        tokio::time::advance(FRESH).await;
        assert_eq!(reason(JobState::Running), "training on 1 rank(s)");
        waits.told(job.id, Condition::OverQuota, "ada has no room");
        assert!(
            reason(JobState::Running).starts_with("waiting: ada has no room; it goes on once its owner ")
        );
        waits.went_on(job.id);
        assert_eq!(reason(JobState::Running), "training on 1 rank(s)");
    }
}
