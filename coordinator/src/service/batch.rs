//! Commands that are stored in one commit.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ringtune_shared::ids::{JobId, WorkerId};
use tokio::sync::mpsc;

use super::error::Error;
use super::handle::Out;
use crate::core::{Action, Cluster, Effects, OtherEpoch, Progress, Sender, SessionId, Write};

/// Answers a request once the commit went well or not; then the state is what is stored.
type Answer = Box<dyn FnOnce(Result<&Cluster, Error>) + Send>;

/// A session's way down, and whose it is.
pub(super) struct Session {
    pub(super) worker: WorkerId,
    pub(super) out: mpsc::Sender<Out>,
}

/// A copy of the state with some commands applied, and what came of them.
pub(super) struct Batch {
    pub(super) next: Cluster,
    pub(super) writes: Vec<Write>,
    pub(super) actions: Vec<Action>,
    /// How far ranks are now.
    pub(super) progress: Vec<(JobId, Progress)>,
    /// What came from another epoch than that of its job's ring.
    pub(super) other_epochs: Vec<OtherEpoch>,
    pub(super) answers: Vec<Answer>,
    /// Sessions that said hello in this batch.
    pub(super) opened: Vec<(SessionId, Session)>,
    /// Whose words are lost if the commit fails.
    pub(super) heard: Vec<Sender>,
}

impl Batch {
    /// The copy costs a few counted references, however large the state is.
    pub(super) fn new(state: &Cluster) -> Self {
        Self {
            next: state.clone(),
            writes: Vec::new(),
            actions: Vec::new(),
            progress: Vec::new(),
            other_epochs: Vec::new(),
            answers: Vec::new(),
            opened: Vec::new(),
            heard: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, effects: Effects) {
        self.writes.extend(effects.writes);
        self.actions.extend(effects.actions);
        self.progress.extend(effects.progress);
        self.other_epochs.extend(effects.other_epoch);
    }

    /// Of several new versions of one row, or of its numbers, only the last is written.
    pub(super) fn coalesced_writes(&mut self) -> Vec<Write> {
        // Whether a later write has the whole row.
        let mut later: HashMap<JobId, bool> = HashMap::new();
        let mut writes = std::mem::take(&mut self.writes);
        writes.reverse();
        writes.retain(|write| match write {
            Write::UpdateJob(job) => later.insert(job.id, true) != Some(true),
            Write::UpdateProgress { job, .. } => match later.entry(*job) {
                Entry::Occupied(_) => false,
                Entry::Vacant(none) => {
                    none.insert(false);
                    true
                }
            },
            _ => true,
        });
        writes.reverse();
        writes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::{Options, Recovered, Time};
    use crate::store::conformance::queued_job;

    #[test]
    fn a_row_is_written_once_and_its_numbers_only_if_they_are_newer() {
        let job = queued_job(1);
        let row = |sequence| {
            let mut job = (*job).clone();
            job.last_sequence = sequence;
            Write::UpdateJob(Arc::new(job))
        };
        let numbers = |last_sequence| Write::UpdateProgress {
            job: job.id,
            step: 0,
            loss: None,
            last_sequence,
            artifacts: 0,
            updated: Time(0),
        };
        let coalesced = |writes: &[Write]| {
            let mut batch = Batch::new(&Cluster::recover(Options::default(), Recovered::default(), Time(0)));
            batch.writes = writes.to_vec();
            batch.coalesced_writes()
        };
        assert_eq!(coalesced(&[row(1), numbers(2), row(3)]), [row(3)]);
        assert_eq!(coalesced(&[row(1), numbers(2), numbers(3)]), [row(1), numbers(3)]);
        assert_eq!(coalesced(&[numbers(1), row(2), numbers(3), numbers(4)]), [row(2), numbers(4)]);
    }
}
