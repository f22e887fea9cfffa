//! Deadlines of workers and jobs, in order, so that a tick looks only at those that are due.

use ringtune_shared::ids::{JobId, WorkerId};

use super::time::Time;
use super::{SharedMap, SharedSet};

/// Whose deadline it is. Workers come first: whether a member of a ring is lost decides about its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Worker(WorkerId),
    Job(JobId),
}

/// At most one entry for each subject, at or before its next deadline.
///
/// A sign of life extends a deadline without touching this: a subject that is due too early is entered again.
#[derive(Debug, Clone, Default)]
pub(super) struct Deadlines {
    queue: SharedSet<(Time, Subject)>,
    entered: SharedMap<Subject, Time>,
}

impl Deadlines {
    /// Enters a subject for `time`, unless it is entered for an earlier one.
    pub(super) fn by(&mut self, subject: Subject, time: Time) {
        let before = self.entered.get(&subject).copied();
        if before.is_some_and(|before| before <= time) {
            return;
        }
        if let Some(before) = before {
            self.queue.remove_mut(&(before, subject));
        }
        self.entered.insert_mut(subject, time);
        self.queue.insert_mut((time, subject));
    }

    /// Removes a subject.
    pub(super) fn forget(&mut self, subject: Subject) {
        if let Some(time) = self.entered.get(&subject) {
            self.queue.remove_mut(&(*time, subject));
            self.entered.remove_mut(&subject);
        }
    }

    /// Takes out all subjects that are due, workers first.
    pub(super) fn take_due(&mut self, now: Time) -> Vec<Subject> {
        let mut due = Vec::new();
        while let Some(&(time, subject)) = self.queue.first()
            && time <= now
        {
            self.forget(subject);
            due.push(subject);
        }
        due.sort_unstable();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_time_counts_and_workers_come_first() {
        let (worker, job) = (Subject::Worker(WorkerId::new()), Subject::Job(JobId::new()));
        let mut deadlines = Deadlines::default();
        deadlines.by(job, Time(5));
        deadlines.by(job, Time(3));
        deadlines.by(job, Time(9));
        deadlines.by(worker, Time(4));
        assert_eq!(deadlines.take_due(Time(2)), []);
        assert_eq!(deadlines.take_due(Time(4)), [worker, job]);
        assert_eq!(deadlines.take_due(Time(100)), []);
        deadlines.by(job, Time(200));
        deadlines.forget(job);
        assert_eq!(deadlines.take_due(Time(300)), []);
    }
}
