//! Commands that are stored in one commit.

use std::collections::BTreeSet;

use ringtune_shared::ids::JobId;
use tokio::sync::mpsc;

use super::error::Error;
use super::handle::Out;
use crate::core::{Action, Cluster, Effects, Progress, Sender, SessionId, Write};

/// Answers a request once the commit went well or not.
type Answer = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// A copy of the state with some commands applied, and what came of them.
pub(super) struct Batch {
    pub(super) next: Cluster,
    pub(super) writes: Vec<Write>,
    pub(super) actions: Vec<Action>,
    /// How far ranks are now.
    pub(super) progress: Vec<(JobId, Progress)>,
    pub(super) answers: Vec<Answer>,
    /// Sessions that said hello in this batch.
    pub(super) opened: Vec<(SessionId, mpsc::Sender<Out>)>,
    /// Whose words are lost if the commit fails.
    pub(super) heard: Vec<Sender>,
}

impl Batch {
    pub(super) fn new(state: &Cluster) -> Self {
        Self {
            next: state.clone(),
            writes: Vec::new(),
            actions: Vec::new(),
            progress: Vec::new(),
            answers: Vec::new(),
            opened: Vec::new(),
            heard: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, effects: Effects) {
        self.writes.extend(effects.writes);
        self.actions.extend(effects.actions);
        self.progress.extend(effects.progress);
    }

    /// Of several new versions of one row only the last is written.
    pub(super) fn coalesced_writes(&mut self) -> Vec<Write> {
        let mut seen: BTreeSet<JobId> = BTreeSet::new();
        let mut writes = std::mem::take(&mut self.writes);
        writes.reverse();
        writes.retain(|write| match write {
            Write::UpdateJob(job) => seen.insert(job.id),
            _ => true,
        });
        writes.reverse();
        writes
    }
}
