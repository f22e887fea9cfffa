//! Commands that are stored in one commit.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use ringtune_shared::ids::{Epoch, JobId, WorkerId};
use tokio::sync::mpsc;
use tracing::debug;

use super::error::Error;
use super::handle::{Out, Reply};
use crate::core::{
    Action, Cluster, Down, Effects, Input, Job, OtherEpoch, Progress, RankTiming, Reformed, Refusal, Sender,
    SessionId, Time, Write,
};

/// Answers a request once the commit went well or not; then the state is what is stored.
type Answer = Box<dyn FnOnce(Result<&Cluster, Error>) + Send>;

/// The job of a request, and its state afterwards unless it had ended before.
pub(super) type Found = (Option<JobId>, Option<Arc<Job>>);

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
    /// What ranks' steps take now, and how many ranks their rings have.
    pub(super) timings: Vec<(JobId, usize, RankTiming)>,
    /// Rings that are whole again.
    pub(super) reformed: Vec<Reformed>,
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
            timings: Vec::new(),
            reformed: Vec::new(),
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
        self.timings.extend(effects.timings);
        self.reformed.extend(effects.reformed);
        self.other_epochs.extend(effects.other_epoch);
    }

    /// Takes in what a worker said, as of when it arrived.
    pub(super) fn said(&mut self, at: Time, sender: Sender, input: Input) {
        match self.next.apply(input, at) {
            Ok(effects) => {
                self.heard.push(sender);
                self.add(effects);
            }
            Err(refusal) => debug!(worker = %sender.worker, %refusal, "dropped a worker's message"),
        }
    }

    /// Takes in a request, which is answered after the commit, also where it is refused: the refusal may rest on what is
    /// not stored yet. Whether it was accepted.
    pub(super) fn request<T: Send + 'static>(
        &mut self,
        at: Time,
        input: Input,
        reply: Reply<T>,
        answer: impl FnOnce(Found, &Cluster) -> Result<T, Error> + Send + 'static,
    ) -> bool {
        let what = match &input {
            Input::KeepArtifact { .. } => Some(OtherEpoch::Upload),
            Input::DropArtifact { .. } => Some(OtherEpoch::Deletion),
            _ => None,
        };
        let outcome = self.next.apply(input, at);
        if let Err(Refusal::OtherEpoch { .. }) = &outcome {
            self.other_epochs.extend(what);
        }
        let outcome = outcome.map(|mut effects| {
            let found = (effects.about, effects.job.take());
            self.add(effects);
            found
        });
        let accepted = outcome.is_ok();
        self.answers.push(Box::new(move |stored| {
            let answer = stored.and_then(|state| answer(outcome?, state));
            // Nobody waits any more where the call was given up.
            let _ = reply.send(answer);
        }));
        accepted
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

    /// Of several words to one rank that its steps are stored, only the last is said, as it means all up to that one: a
    /// worker that comes back brings more steps than its session takes messages.
    pub(super) fn coalesced_actions(&mut self) -> Vec<Action> {
        let mut later: HashMap<(SessionId, JobId, Epoch), u64> = HashMap::new();
        let mut actions = std::mem::take(&mut self.actions);
        for action in &actions {
            if let Action::Send(session, Down::StepsStored(job, epoch, step)) = action {
                let newest = later.entry((*session, *job, *epoch)).or_default();
                *newest = (*newest).max(*step);
            }
        }
        actions.reverse();
        actions.retain_mut(|action| match action {
            Action::Send(session, Down::StepsStored(job, epoch, step)) => {
                later.remove(&(*session, *job, *epoch)).map(|newest| *step = newest).is_some()
            }
            _ => true,
        });
        actions.reverse();
        actions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing;
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
            validation: None,
            last_sequence,
            artifacts: 0,
            updated: Time(0),
        };
        let coalesced = |writes: &[Write]| {
            let mut batch = Batch::new(&testing::cluster());
            batch.writes = writes.to_vec();
            batch.coalesced_writes()
        };
        assert_eq!(coalesced(&[row(1), numbers(2), row(3)]), [row(3)]);
        assert_eq!(coalesced(&[row(1), numbers(2), numbers(3)]), [row(1), numbers(3)]);
        assert_eq!(coalesced(&[numbers(1), row(2), numbers(3), numbers(4)]), [row(2), numbers(4)]);
    }

    #[test]
    fn that_steps_are_stored_is_said_once_to_each_rank_up_to_the_last() {
        let (job, other) = (JobId::new(), JobId::new());
        let stored = |session, job, epoch, step| {
            Action::Send(SessionId(session), Down::StepsStored(job, Epoch(epoch), step))
        };
        let start = || Action::Send(SessionId(1), Down::StartRank(job, Epoch(2)));
        let mut batch = Batch::new(&testing::cluster());
        batch.actions = vec![
            stored(1, job, 1, 1),
            stored(2, job, 1, 1),
            stored(1, job, 1, 9),
            start(),
            stored(1, other, 1, 3),
            stored(1, job, 2, 5),
            // Done again, after the coordinator had it.
            stored(1, job, 1, 8),
        ];
        let expected = [
            stored(2, job, 1, 1),
            start(),
            stored(1, other, 1, 3),
            stored(1, job, 2, 5),
            stored(1, job, 1, 9),
        ];
        assert_eq!(batch.coalesced_actions(), expected);
    }
}
