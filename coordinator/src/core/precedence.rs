//! The order of jobs that wait.

use std::cmp::Reverse;

use super::job::Job;
use super::shares::Level;

/// Where an owner's jobs stand among those of others of the same priority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Standing {
    /// They come after all others.
    pub(super) late: bool,
    /// What the owner has used.
    pub(super) level: Level,
}

/// A job's place in the order of those that wait. Lower comes first: jobs of latecomers last; then by priority; then whose
/// owner has used less; then the older one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Precedence {
    pub(super) late: bool,
    pub(super) urgency: Reverse<u32>,
    pub(super) level: Level,
    pub(super) number: u64,
}

impl Precedence {
    pub(super) fn of(job: &Job, standing: Standing) -> Self {
        let Standing { late, level } = standing;
        Self { late, urgency: Reverse(job.urgency()), level, number: job.number }
    }
}
