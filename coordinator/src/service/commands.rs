//! What each command does to a batch.

use std::sync::Arc;

use ringtune_shared::ids::JobId;
use tracing::debug;

use super::batch::{Batch, Session};
use super::error::Error;
use super::handle::{Arrived, Command, Reply};
use super::run::Loop;
use crate::core::{Cluster, Input, Job, OtherEpoch, Refusal, Sender, Time};

/// The job that a request was about, and how it was after it, unless it had ended before.
type Found = (Option<JobId>, Option<Arc<Job>>);

impl Loop {
    /// Applies one command to the batch, as of when it arrived.
    pub(super) fn take(&mut self, batch: &mut Batch, arrived: Arrived) {
        let Arrived { at, command } = arrived;
        match command {
            Command::Said(sender, input) => apply_said(batch, at, sender, input),
            Command::SessionEnded(sender) => {
                self.sessions.remove(&sender.session);
                apply_said(batch, at, sender, Input::SessionEnded(sender));
            }
            Command::Hello(hello, session, out, reply) => {
                let worker = hello.worker;
                let input = Input::Hello { session, hello: *hello };
                if apply_request(batch, at, input, reply, |_, _| Ok(())) {
                    batch.opened.push((session, Session { worker, out }));
                }
            }
            Command::CreateJob(new, reply) => {
                let id = new.id;
                apply_request(batch, at, Input::CreateJob(new), reply, move |found, state| {
                    Ok((found.0.unwrap_or(id), newest(found, state)))
                });
            }
            Command::CancelJob(job, reason, reply) => {
                let input = Input::CancelJob { job, reason };
                apply_request(batch, at, input, reply, move |found, state| {
                    newest(found, state).ok_or(Error::NoSuchJob(job))
                });
            }
            Command::KeepArtifact(artifact, reply) => {
                let input = Input::KeepArtifact { artifact };
                apply_request(batch, at, input, reply, |_, _| Ok(()));
            }
            Command::DropArtifact(job, name, epoch, reply) => {
                let input = Input::DropArtifact { job, name, epoch };
                apply_request(batch, at, input, reply, |_, _| Ok(()));
            }
            Command::Forget(job, reply) => {
                batch.next.forget_request(&job);
                batch.answers.push(Box::new(move |stored| {
                    // Nobody waits any more where the call was given up.
                    let _ = reply.send(stored.map(|_| ()));
                }));
            }
            Command::Deleted(state) => {
                if let Some(count) = self.ended.get_mut(&state) {
                    *count = count.saturating_sub(1);
                }
            }
        }
    }
}

/// A job as it is now: rings are formed once all commands of a batch are in.
fn newest((id, job): Found, state: &Cluster) -> Option<Arc<Job>> {
    id.and_then(|id| state.job(id).cloned()).or(job)
}

pub(super) fn apply_said(batch: &mut Batch, at: Time, sender: Sender, input: Input) {
    match batch.next.apply(input, at) {
        Ok(effects) => {
            batch.heard.push(sender);
            batch.add(effects);
        }
        Err(refusal) => debug!(worker = %sender.worker, %refusal, "dropped a worker's message"),
    }
}

/// Applies a request, which is answered after the commit, also where it is refused: the refusal may rest on what is not
/// stored yet. Whether it was accepted.
fn apply_request<T: Send + 'static>(
    batch: &mut Batch,
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
    let outcome = batch.next.apply(input, at);
    if let Err(Refusal::OtherEpoch { .. }) = &outcome {
        batch.other_epochs.extend(what);
    }
    let outcome = outcome.map(|mut effects| {
        let found = (effects.about, effects.job.take());
        batch.add(effects);
        found
    });
    let accepted = outcome.is_ok();
    batch.answers.push(Box::new(move |stored| {
        let answer = stored.and_then(|state| answer(outcome?, state));
        // Nobody waits any more where the call was given up.
        let _ = reply.send(answer);
    }));
    accepted
}
