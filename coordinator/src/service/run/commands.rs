//! What each command does to a batch.

use std::sync::Arc;

use super::Loop;
use crate::core::{Cluster, Input, Job};
use crate::service::batch::{Batch, Found, Session};
use crate::service::error::Error;
use crate::service::handle::{Arrived, Command};

impl Loop {
    /// Applies one command to the batch, as of when it arrived.
    pub(super) fn take(&mut self, batch: &mut Batch, arrived: Arrived) {
        let Arrived { at, command } = arrived;
        match command {
            Command::Said(sender, input) => batch.said(at, sender, input),
            Command::SessionEnded(sender) => {
                self.sessions.remove(&sender.session);
                batch.said(at, sender, Input::SessionEnded(sender));
            }
            Command::Hello(hello, session, out, reply) => {
                let worker = hello.worker;
                let input = Input::Hello { session, hello: *hello };
                if batch.request(at, input, reply, |_, _| Ok(())) {
                    batch.opened.push((session, Session { worker, out }));
                }
            }
            Command::Make(input, reply) => {
                batch.request(at, input, reply, |(id, job), state| {
                    let id = id.ok_or(Error::ShuttingDown)?;
                    Ok((id, newest((Some(id), job), state)))
                });
            }
            Command::Change(job, input, reply) => {
                batch.request(at, input, reply, move |found, state| {
                    newest(found, state).ok_or(Error::NoSuchJob(job))
                });
            }
            Command::CancelSweep(sweep, reason, reply) => {
                batch.request(at, Input::CancelSweep { sweep, reason }, reply, |_, _| Ok(()));
            }
            Command::KeepArtifact(artifact, reply) => {
                let input = Input::KeepArtifact { artifact };
                batch.request(at, input, reply, |_, _| Ok(()));
            }
            Command::DropArtifact(job, name, epoch, reply) => {
                let input = Input::DropArtifact { job, name, epoch };
                batch.request(at, input, reply, |_, _| Ok(()));
            }
            Command::Drain(worker, draining, reply) => {
                batch.request(at, Input::DrainWorker { worker, draining }, reply, |_, _| Ok(()));
            }
            Command::Evict(worker, session, reply) => {
                batch.request(at, Input::Evicted { worker, session }, reply, |_, _| Ok(()));
            }
            Command::Forget(job, reply) => {
                batch.next.forget_request(&job);
                batch.answers.push(Box::new(move |stored| {
                    // Nobody waits any more where the call was given up.
                    let _ = reply.send(stored.map(|_| ()));
                }));
            }
            Command::Limits(limits) => batch.next.set_limits(limits),
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
