//! What lists ask a store for: which things, in which order, from where on.
//!
//! Every page begins behind the last thing of the page before (keyset): what comes or goes meanwhile neither repeats nor
//! hides anything else.

#[cfg(test)]
pub(super) mod conformance;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use ringtune_shared::ids::{JobId, SweepId};
use ringtune_shared::job::JobKind;

use crate::core::{EventKind, Job, JobState, Time};

/// A page of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobQuery {
    /// Which jobs.
    pub filter: JobFilter,
    /// In which order. Jobs that are equal in it are in the order of their numbers.
    pub order: JobOrder,
    /// The greatest first.
    pub descending: bool,
    /// Only jobs behind this one; none: from the first on.
    pub after: Option<JobPlace>,
    /// The page size.
    pub limit: u32,
}

/// Which jobs; all of it must be true.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// In one of these states; none: in any.
    pub states: Option<Vec<JobState>>,
    /// Of this name.
    pub name: Option<String>,
    /// Of this owner.
    pub owner: Option<String>,
    /// Of this priority.
    pub priority: Option<u32>,
    /// Of this kind.
    pub kind: Option<JobKind>,
    /// Of this sweep.
    pub sweep: Option<SweepId>,
    /// With these labels.
    pub labels: BTreeMap<String, String>,
}

/// What jobs are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobOrder {
    /// Their creation: their numbers.
    Creation,
    /// `queue.priority`.
    Priority,
    /// Their names, by bytes.
    Name,
}

/// Where a job stands in the order of jobs: no two stand in the same place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPlace {
    /// What it is ordered by.
    pub key: JobKey,
    /// The job's number.
    pub number: u64,
}

/// The value of a job that a [`JobOrder`] compares.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobKey {
    /// For [`JobOrder::Creation`], where the number is all there is.
    Creation,
    /// For [`JobOrder::Priority`].
    Priority(u32),
    /// For [`JobOrder::Name`].
    Name(String),
}

/// A page of a job's artifacts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactQuery {
    /// The job.
    pub job: JobId,
    /// Only that of this name.
    pub name: Option<String>,
    /// Only those of this media type.
    pub media_type: Option<String>,
    /// By when they were kept, instead of their names' bytes; those of one time are in the order of their names.
    pub by_time: bool,
    /// The greatest first.
    pub descending: bool,
    /// Only artifacts behind the one of this time and name; the time counts only with `by_time`.
    pub after: Option<(Time, String)>,
    /// The page size.
    pub limit: u32,
}

/// A page of a job's events, in the order of their sequence numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventQuery {
    /// The job.
    pub job: JobId,
    /// Only events with a greater sequence number.
    pub above: u64,
    /// Only events with a smaller one.
    pub below: Option<u64>,
    /// Only events of this kind.
    pub kind: Option<EventKind>,
    /// The newest first.
    pub descending: bool,
    /// The page size.
    pub limit: u32,
}

impl JobQuery {
    /// Which of two places comes first. Of jobs that are equal in the order's key, the older one; of creation, the
    /// number is the key.
    pub fn compare(&self, one: &JobPlace, other: &JobPlace) -> Ordering {
        let directed = |order: Ordering| if self.descending { order.reverse() } else { order };
        match (&one.key, &other.key) {
            (JobKey::Creation, JobKey::Creation) => directed(one.number.cmp(&other.number)),
            (key, other_key) => directed(key.cmp(other_key)).then(one.number.cmp(&other.number)),
        }
    }
}

impl JobOrder {
    /// Where `job` stands in this order.
    pub fn place(self, job: &Job) -> JobPlace {
        let key = match self {
            Self::Creation => JobKey::Creation,
            Self::Priority => JobKey::Priority(job.queue.priority),
            Self::Name => JobKey::Name(job.spec.common.name.clone()),
        };
        JobPlace { key, number: job.number }
    }
}
