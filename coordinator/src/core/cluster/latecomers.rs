//! Owners whose jobs fail to prepare: their other jobs come after everybody else's, so that a hundred mistyped ones keep
//! nobody waiting. They take no worker from anybody, and lose none that nobody else wants.

use crate::core::SharedMap;
use crate::core::time::Time;

/// Most owners that are remembered: without TLS anybody can make up names.
const MOST: usize = 1000;

/// By owner. Expired entries are forgotten when room is needed.
#[derive(Debug, Clone, Default)]
pub(super) struct Latecomers(SharedMap<String, Late>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Late {
    /// None: that is over.
    until: Option<Time>,
    /// How many of its jobs failed in turn.
    failures: u32,
}

impl Latecomers {
    /// A job of this owner failed to prepare. `first`, `longest`: milliseconds.
    pub(super) fn failed(&mut self, owner: &str, now: Time, first: i64, longest: i64) {
        let failures = self.0.get(owner).map_or(0, |late| late.failures);
        if failures == 0 && self.0.size() >= MOST {
            self.expire(now);
            let over = self.0.iter().filter(|(_, late)| late.until.is_none());
            let over: Vec<String> = over.map(|(owner, _)| owner.clone()).collect();
            for owner in over {
                self.0.remove_mut(&owner);
            }
            if self.0.size() >= MOST {
                return;
            }
        }
        let until = Some(now.plus(first.saturating_mul(1 << failures.min(32)).min(longest)));
        self.0.insert_mut(owner.to_owned(), Late { until, failures: failures.saturating_add(1) });
    }

    /// A job of this owner is prepared.
    pub(super) fn prepared(&mut self, owner: &str) {
        self.0.remove_mut(owner);
    }

    /// Ends what is over by now. Whose jobs are in their place again.
    pub(super) fn expire(&mut self, now: Time) -> Vec<String> {
        let over = self.0.iter().filter(|(_, late)| late.until.is_some_and(|until| until <= now));
        let over: Vec<String> = over.map(|(owner, _)| owner.clone()).collect();
        for late in &over {
            if let Some(late) = self.0.get_mut(late) {
                late.until = None;
            }
        }
        over
    }

    pub(super) fn is_late(&self, owner: &str) -> bool {
        self.0.get(owner).is_some_and(|late| late.until.is_some())
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

    #[test]
    fn it_is_over_after_a_time_that_doubles_with_each_failure() {
        let mut late = Latecomers::default();
        late.failed("ada", Time(0), 10, 100);
        assert_eq!((late.expire(Time(9)).len(), late.is_late("ada")), (0, true));
        assert_eq!((late.expire(Time(10)), late.is_late("ada")), (vec!["ada".to_owned()], false));
        late.failed("ada", Time(10), 10, 100);
        assert!(late.expire(Time(29)).is_empty() && late.expire(Time(30)).len() == 1);
        assert!(late.expire(Time(31)).is_empty());
    }
}
