//! Which jobs a page is to be told of next: pure.
//!
//! A page hears of each job as it is, not of everything that happened to it. So of a job that changed only its id is
//! kept, until there is time to look it up; what a slow page costs is bounded by the number of jobs.

use std::collections::{BTreeSet, VecDeque};

use uuid::Uuid;

/// Jobs in a message.
pub(super) const PORTION: usize = 100;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Portion<T> {
    /// Jobs that came as they are.
    pub(super) whole: Vec<T>,
    /// Jobs to look up.
    pub(super) changed: Vec<Uuid>,
    /// Jobs that are there no more, to be told after the others.
    pub(super) deleted: Vec<Uuid>,
}

/// See above. `T` is a job.
#[derive(Debug)]
pub(super) struct Jobs<T> {
    whole: Vec<T>,
    changed: VecDeque<Uuid>,
    /// The ids in `changed`, to find them.
    waiting: BTreeSet<Uuid>,
    /// Those that were told and had not ended.
    active: BTreeSet<Uuid>,
    deleted: Vec<Uuid>,
}

impl<T> Jobs<T> {
    pub(super) fn new() -> Self {
        Self {
            whole: Vec::new(),
            changed: VecDeque::new(),
            waiting: BTreeSet::new(),
            active: BTreeSet::new(),
            deleted: Vec::new(),
        }
    }

    /// A job's present state came by itself.
    pub(super) fn came(&mut self, id: Uuid, ended: bool, job: T) {
        self.waiting.remove(&id);
        self.whole.push(job);
        self.seen(id, ended);
    }

    /// A job was looked up.
    pub(super) fn seen(&mut self, id: Uuid, ended: bool) {
        if ended {
            self.active.remove(&id);
        } else {
            self.active.insert(id);
        }
    }

    /// A job was not found.
    pub(super) fn gone(&mut self, id: Uuid) {
        self.active.remove(&id);
    }

    /// A job was deleted.
    pub(super) fn deleted(&mut self, id: Uuid) {
        self.waiting.remove(&id);
        self.gone(id);
        self.deleted.push(id);
    }

    /// Something happened to a job.
    pub(super) fn changed(&mut self, id: Uuid) {
        if self.waiting.insert(id) {
            self.changed.push_back(id);
        }
        // Ids that came whole meanwhile are in the line still: it is cleared of them before it grows.
        if self.changed.len() > 2 * self.waiting.len() + PORTION {
            let waiting = &self.waiting;
            let mut kept = BTreeSet::new();
            self.changed.retain(|id| waiting.contains(id) && kept.insert(*id));
        }
    }

    /// News were missed: any of those that were active may have ended.
    pub(super) fn missed(&mut self) {
        for id in std::mem::take(&mut self.active) {
            self.changed(id);
        }
    }

    /// Whether a message is full, so that it need not wait.
    pub(super) fn is_full(&self) -> bool {
        self.whole.len() >= PORTION || self.deleted.len() >= PORTION
    }

    /// Whether there is something to tell.
    pub(super) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.waiting.is_empty() && self.deleted.is_empty()
    }

    /// The next message's.
    pub(super) fn next(&mut self) -> Portion<T> {
        let whole = std::mem::take(&mut self.whole);
        let mut changed = Vec::new();
        while whole.len() + changed.len() < PORTION {
            let Some(id) = self.changed.pop_front() else { break };
            if self.waiting.remove(&id) {
                changed.push(id);
            }
        }
        Portion { whole, changed, deleted: std::mem::take(&mut self.deleted) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> Uuid {
        Uuid::from_u128(number as u128)
    }

    /// A portion in which nothing is deleted.
    fn portion<T>(whole: Vec<T>, changed: Vec<Uuid>) -> Portion<T> {
        Portion { whole, changed, deleted: Vec::new() }
    }

    #[test]
    fn of_many_changes_only_the_newest_state_is_told() {
        let mut jobs = Jobs::new();
        jobs.came(id(1), false, "one");
        assert!(!jobs.is_full());
        assert_eq!(jobs.next(), portion(vec!["one"], vec![]));
        for _ in 0..1000 {
            jobs.changed(id(1));
            jobs.changed(id(2));
        }
        assert_eq!(jobs.next(), portion(vec![], vec![id(1), id(2)]));
        assert!(jobs.is_empty());
        jobs.changed(id(2));
        jobs.came(id(2), false, "two");
        assert_eq!(jobs.next(), portion(vec!["two"], vec![]), "newer than the change");
        assert!(jobs.is_empty() && jobs.next().changed.is_empty());
    }

    #[test]
    fn a_message_has_a_hundred_jobs_and_those_that_waited_longest_first() {
        let mut jobs = Jobs::new();
        (0..250).for_each(|number| jobs.changed(id(number)));
        (0..30).for_each(|number| jobs.came(id(1000 + number), false, number));
        let portion = jobs.next();
        assert_eq!((portion.whole.len(), portion.changed.len()), (30, 70));
        jobs.changed(id(0));
        let rest: Vec<Uuid> = [jobs.next().changed, jobs.next().changed].concat();
        assert_eq!(rest, (70..250).chain([0]).map(id).collect::<Vec<_>>());
        (0..PORTION).for_each(|number| jobs.came(id(number), false, number));
        assert!(jobs.is_full());
    }

    #[test]
    fn what_waits_is_bounded_by_the_number_of_jobs() {
        let mut jobs = Jobs::new();
        for _ in 0..10_000 {
            for number in 0..10 {
                jobs.changed(id(number));
                jobs.came(id(number), false, ());
            }
            jobs.whole.clear();
        }
        assert!(jobs.changed.len() <= PORTION + 30, "{}", jobs.changed.len());
    }

    #[test]
    fn after_a_gap_jobs_that_may_have_ended_are_looked_up() {
        let mut jobs = Jobs::new();
        jobs.came(id(1), false, ());
        jobs.came(id(2), true, ());
        jobs.came(id(3), false, ());
        jobs.gone(id(3));
        jobs.next();
        jobs.missed();
        assert_eq!(jobs.next().changed, [id(1)]);
        jobs.seen(id(1), true);
        jobs.missed();
        assert!(jobs.is_empty());
    }
    #[test]
    fn a_deleted_job_is_told_once_and_not_looked_up() {
        let mut jobs = Jobs::new();
        jobs.came(id(1), true, "one");
        jobs.came(id(2), false, "two");
        jobs.changed(id(2));
        jobs.deleted(id(1));
        jobs.deleted(id(2));
        let last = Portion { whole: vec!["one", "two"], changed: vec![], deleted: vec![id(1), id(2)] };
        assert_eq!(jobs.next(), last);
        jobs.missed();
        assert!(jobs.is_empty(), "it is not there to have ended");
        (0..PORTION).for_each(|number| jobs.deleted(id(number)));
        assert!(jobs.is_full() && !jobs.is_empty());
    }
}
