//! Owners whose jobs fail to prepare: their other jobs come after everybody else's, so that a hundred mistyped ones keep
//! nobody waiting. They take no worker from anybody, and lose none that nobody else wants.

use super::Cluster;
use crate::core::SharedMap;
use crate::core::job::{Job, JobTurn};
use crate::core::time::Time;

/// Most owners that are remembered: without TLS anybody can make up names.
const MOST: usize = 1000;

/// By owner. Expired entries are forgotten when room is needed.
#[derive(Debug, Clone, Default)]
pub(in crate::core) struct Latecomers(SharedMap<String, Late>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Late {
    until: Time,
    /// How many of its jobs failed in turn.
    failures: u32,
}

impl Latecomers {
    /// A job of this owner failed to prepare. `first`, `longest`: milliseconds.
    pub(in crate::core) fn failed(&mut self, owner: &str, now: Time, first: i64, longest: i64) {
        let failures = self.0.get(owner).map_or(0, |late| late.failures);
        if failures == 0 && self.0.size() >= MOST {
            let over: Vec<String> =
                self.0.iter().filter(|(_, late)| late.until <= now).map(|(owner, _)| owner.clone()).collect();
            for owner in over {
                self.0.remove_mut(&owner);
            }
            if self.0.size() >= MOST {
                return;
            }
        }
        let until = now.plus(first.saturating_mul(1 << failures.min(32)).min(longest));
        self.0.insert_mut(owner.to_owned(), Late { until, failures: failures.saturating_add(1) });
    }

    /// A job of this owner is prepared.
    pub(in crate::core) fn prepared(&mut self, owner: &str) {
        self.0.remove_mut(owner);
    }
}

impl Cluster {
    /// The job's place among those that wait.
    pub(in crate::core) fn turn_of(&self, job: &Job) -> JobTurn {
        let late = self.latecomers.0.get(&job.queue.owner).is_some_and(|late| late.until > self.latest);
        (late, job.number)
    }

    /// Whether some jobs may come after those of others.
    pub(in crate::core) fn has_latecomers(&self) -> bool {
        !self.latecomers.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_owners_are_remembered_than_may_be() {
        let mut late = Latecomers::default();
        (0..2 * MOST).for_each(|number| late.failed(&number.to_string(), Time(0), 10, 100));
        assert_eq!(late.0.size(), MOST);
        // Those of before are over, and make room.
        late.failed("later", Time(11), 10, 100);
        assert_eq!(late.0.size(), 1);
        late.prepared("later");
        assert_eq!(late.0.size(), 0);
    }
}
