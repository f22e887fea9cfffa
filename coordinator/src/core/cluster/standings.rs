//! Where the jobs of an owner stand in the queue, and how many ranks they may have.

use super::Cluster;
use crate::core::job::Job;
use crate::core::job_state::JobState;
use crate::core::precedence::{Precedence, Standing};
use crate::core::shares::Account;
use crate::core::time::Time;

/// How much there is of what [`crate::core::Limits`] limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerLoad {
    /// Jobs in the queue, paused ones included, of all owners.
    pub queued_of_all: usize,
    /// Jobs of the owner in the queue, paused ones included.
    pub queued: usize,
    /// Ranks of the owner.
    pub ranks: u32,
}

impl Cluster {
    /// The job's place in the order of those that wait.
    pub(in crate::core) fn precedence_of(&self, job: &Job) -> Precedence {
        Precedence::of(job, self.standing_of(&job.queue.owner))
    }

    pub(in crate::core) fn standing_of(&self, owner: &str) -> Standing {
        let level = self.shares.level(owner, &self.options.fairness);
        Standing { late: self.latecomers.is_late(owner), level }
    }

    /// How many more ranks an owner may have.
    pub(in crate::core) fn room_of(&self, owner: &str) -> u32 {
        match self.options.limits.owner_ranks {
            0 => u32::MAX,
            limit => limit.saturating_sub(self.shares.held(owner)),
        }
    }

    /// Jobs in the queue, those of an owner among them, and the ranks that the owner has.
    pub fn load_of(&self, owner: &str) -> OwnerLoad {
        OwnerLoad {
            queued_of_all: self.count_jobs(JobState::Queued) + self.count_jobs(JobState::Paused),
            queued: self.queue.jobs_of(owner) + self.paused_of(owner),
            ranks: self.shares.held(owner),
        }
    }

    fn paused_of(&self, owner: &str) -> usize {
        // Few jobs are paused, and mostly none.
        match self.count_jobs(JobState::Paused) {
            0 => 0,
            _ => {
                let paused = self.jobs.values().filter(|job| job.state == JobState::Paused);
                paused.filter(|job| job.queue.owner == owner).count()
            }
        }
    }

    /// What an owner has used.
    pub fn account_of(&self, owner: &str) -> Option<Account> {
        self.shares.get(owner)
    }

    /// A job of this owner failed to prepare. `first`, `longest`: milliseconds.
    pub(in crate::core) fn owner_failed(&mut self, owner: &str, now: Time, first: i64, longest: i64) {
        self.latecomers.failed(owner, now, first, longest);
        self.look_at_standing(owner);
    }

    /// A job of this owner is prepared.
    pub(in crate::core) fn owner_prepared(&mut self, owner: &str) {
        self.latecomers.prepared(owner);
        self.look_at_standing(owner);
    }

    /// Those whose time as latecomers is over are in their place again.
    pub(in crate::core) fn expire_latecomers(&mut self) {
        for owner in self.latecomers.expire(self.latest) {
            self.look_at_standing(&owner);
        }
    }

    /// An owner has a rank more, or one less.
    pub(super) fn hold(&mut self, owner: &str, takes: bool) {
        let forgotten = self.shares.hold(owner, takes, self.latest, self.options.fairness.half_life);
        self.look_at_standing(owner);
        forgotten.iter().for_each(|owner| self.look_at_standing(owner));
    }

    /// Counts what was used until now.
    pub(in crate::core) fn count_use(&mut self, now: Time) {
        for owner in self.shares.count(now, self.options.fairness.half_life) {
            self.look_at_standing(&owner);
        }
    }

    pub(super) fn look_at_standing(&mut self, owner: &str) {
        let standing = self.standing_of(owner);
        self.queue.set_standing(owner, standing);
    }
}
