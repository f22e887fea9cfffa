//! Which jobs to look at again, because what they wait for may have changed: pure.
//!
//! Nothing happens to a job whose reason to wait changes: the reason follows from all other jobs and workers, or from what the
//! coordinator cannot do just now, and is made out when somebody asks. So jobs that have not ended are looked up in turns, a bounded number at a time, the newest first, which a page shows first:
//! a round whenever the cluster has changed, and one now and then.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use uuid::Uuid;

/// Jobs that are looked up at a time.
const PORTION: usize = 100;
/// After so many turns without a round there is one.
const PATIENCE: u32 = 5;

/// See above.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// The jobs that were told and have not ended, and a hash of what was told of each. Ids are in the order in which jobs came.
    told: BTreeMap<Uuid, u64>,
    round: Option<Round>,
    again: bool,
    resting: u32,
}

/// A round goes on with the newest job before this one; none: with the newest.
#[derive(Debug, Clone, Copy)]
struct Round(Option<Uuid>);

fn print(json: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    json.hash(&mut hasher);
    hasher.finish()
}

impl Waiting {
    /// A job was told. Whether it was told otherwise before.
    pub(super) fn told(&mut self, id: Uuid, active: bool, json: &str) -> bool {
        if !active {
            self.told.remove(&id);
            return true;
        }
        let print = print(json);
        self.told.insert(id, print) != Some(print)
    }

    /// A job is there no more.
    pub(super) fn gone(&mut self, id: Uuid) {
        self.told.remove(&id);
    }

    /// Workers or jobs are others than before: another round begins after this one.
    pub(super) fn changed(&mut self) {
        self.again = true;
    }

    /// The next turn's: jobs to look up.
    pub(super) fn turn(&mut self) -> Vec<Uuid> {
        self.resting += 1;
        if self.round.is_none() && (self.again || self.resting >= PATIENCE) {
            (self.round, self.again) = (Some(Round(None)), false);
        }
        let Some(Round(before)) = self.round else { return Vec::new() };
        let newest_first = match before {
            None => self.told.range(..).rev(),
            Some(before) => self.told.range(..before).rev(),
        };
        let ids: Vec<Uuid> = newest_first.map(|(id, _)| *id).take(PORTION).collect();
        let is_last = ids.len() < PORTION;
        self.round = ids.last().filter(|_| !is_last).map(|last| Round(Some(*last)));
        self.resting = 0;
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> Uuid {
        Uuid::from_u128(number as u128)
    }

    /// So many queued jobs, each told as it is; the first round is over.
    fn of(jobs: usize) -> Waiting {
        let mut waiting = Waiting::default();
        (0..jobs).for_each(|number| assert!(waiting.told(id(number), true, "submitted")));
        waiting
    }

    #[test]
    fn only_another_reason_is_news() {
        let mut waiting = of(1);
        assert!(!waiting.told(id(0), true, "submitted"));
        assert!(waiting.told(id(0), true, "another job comes first"));
        assert!(waiting.told(id(0), false, "running") && waiting.told(id(0), false, "running"));
        waiting.changed();
        assert!(waiting.turn().is_empty(), "it waits no more");
    }

    #[test]
    fn a_round_has_all_queued_jobs_once_the_newest_first() {
        let mut waiting = of(250);
        waiting.gone(id(240));
        waiting.changed();
        let first = waiting.turn();
        assert_eq!((first.len(), first[0], first[9]), (PORTION, id(249), id(239)));
        // The cluster changes in the midst of it: this round goes on, and another one follows.
        waiting.changed();
        let rest = [waiting.turn(), waiting.turn()].concat();
        assert_eq!([first.clone(), rest].concat().len(), 249);
        assert_eq!(waiting.turn(), first);
        waiting.turn();
        waiting.turn();
        // Nothing changes any more: the next one comes in its time.
        for _ in 1..PATIENCE {
            assert!(waiting.turn().is_empty());
        }
        assert_eq!(waiting.turn(), first);
    }

    #[test]
    fn a_round_that_fits_exactly_ends() {
        let mut waiting = of(PORTION);
        waiting.changed();
        assert_eq!((waiting.turn().len(), waiting.turn().len()), (PORTION, 0));
        for _ in 1..PATIENCE {
            assert!(waiting.turn().is_empty());
        }
        assert_eq!(waiting.turn().len(), PORTION);
    }
}
