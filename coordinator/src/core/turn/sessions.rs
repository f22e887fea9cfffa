//! Workers come, go, and come back.

use std::collections::BTreeSet;
use std::sync::Arc;

use ringtune_shared::ids::{JobId, WorkerId};
use ringtune_shared::version::{Agreement, Dialect};

use super::Turn;
use crate::core::effect::{Action, Down, Refusal};
use crate::core::input::{HeldRank, Hello, Sender, SessionId};
use crate::core::job::{JobState, Phase};
use crate::core::reason::Failure;
use crate::core::record::{EventBody, LogLevel};
use crate::core::worker::Worker;

impl Turn<'_> {
    /// A worker opened a session: the newest one of the newest incarnation counts.
    pub(super) fn hello(&mut self, session: SessionId, hello: Hello) -> Result<(), Refusal> {
        let agreement = self.check_hello(&hello)?;
        let id = hello.worker;

        // 1. Put the new session in the old one's place.
        let known = self.cluster.workers.get(&id).cloned();
        if let Some(old) = known.as_ref().and_then(|worker| worker.session) {
            self.effects.actions.push(Action::Close(old, "another session of this worker began".to_owned()));
        }
        let releasing = known.as_ref().map(|worker| worker.releasing.clone()).unwrap_or_default();
        let held_now: BTreeSet<_> = hello.held.iter().map(|held| (held.job, held.epoch)).collect();
        let worker = Worker {
            id,
            incarnation: hello.incarnation,
            session: Some(session),
            host_name: self.cut(&hello.host_name),
            address: hello.address,
            capabilities: hello.capabilities,
            protocol: agreement.protocol,
            connected: self.now,
            last_sign: self.now,
            lost: None,
            rank: None,
            releasing: releasing.intersection(&held_now).copied().collect(),
        };
        self.cluster.workers.insert(id, Arc::new(worker));
        self.effects.actions.push(Action::Send(session, Down::Welcome(agreement)));

        // 2. Ranks that no ring knows: let them go, even if it was told so on an older session, and
        // before it is given another one.
        for held in &hello.held {
            if !self.holds(id, held) {
                self.release(id, held.job, held.epoch, "the coordinator has no such rank");
            }
        }

        // 3. The rank that a ring gave it: does it still hold it?
        if let Some((job, rank)) = self.ring_of(id) {
            if let Some(worker) = self.worker_mut(id) {
                worker.rank = Some((job, rank));
            }
            self.member_is_back(job, rank, id, hello.incarnation, &hello.held);
        }
        self.cluster.placement_due = true;
        Ok(())
    }

    fn check_hello(&self, hello: &Hello) -> Result<Agreement, Refusal> {
        let options = &self.cluster.options;
        let agreement = Dialect::agree(&hello.dialect, &options.dialect)?;
        match self.cluster.workers.get(&hello.worker) {
            Some(known) if known.incarnation > hello.incarnation => {
                Err(Refusal::OlderIncarnation { given: hello.incarnation, newest: known.incarnation })
            }
            None if self.cluster.workers.len() >= options.workers => {
                Err(Refusal::TooManyWorkers { limit: options.workers })
            }
            _ => Ok(agreement),
        }
    }

    /// A member of a ring said hello again.
    fn member_is_back(
        &mut self,
        job: JobId,
        rank: u32,
        worker: WorkerId,
        incarnation: u64,
        held: &[HeldRank],
    ) {
        let Some(known) = self.cluster.jobs.get(&job) else { return };
        let Some(ring) = &known.ring else { return };
        let Some(member) = ring.members.iter().find(|member| member.worker == worker) else { return };
        let (state, cancelling, epoch) = (known.state, known.cancel.clone(), ring.epoch);
        let (restarted, unheard) = (member.incarnation != incarnation, member.phase == Phase::Assigned);
        let host = member.host_name.clone();
        if let Some(held) = held.iter().find(|held| self.holds(worker, held)) {
            self.observe(worker, held);
            if self.cluster.jobs.get(&job).is_none_or(|job| job.ring.is_none()) {
                return;
            }
            if let Some(cancel) = cancelling {
                let reason = cancel.reason;
                self.tell(worker, Down::StopRank { job, epoch, reason, keep_artifacts: true });
            } else if state == JobState::Running && held.phase == Phase::Ready {
                self.tell(worker, Down::StartRank(job, epoch));
            }
        } else if cancelling.is_some() {
            let reason = "the rank is gone".to_owned();
            let stopped =
                HeldRank { job, epoch, rank, phase: Phase::Stopped, reason, neighbour_lost: false, step: 0 };
            self.observe(worker, &stopped);
        } else if restarted {
            let reason = format!("worker restarted: rank {rank} on {host} is lost");
            self.fail_job(job, Failure::WorkerLost, &reason);
        } else if state == JobState::Preparing && unheard {
            // The assignment may never have reached it.
            self.mark_held(job, worker);
            self.assign(job, worker);
        } else {
            let reason = format!("rank {rank} on {host}: the worker came back without it");
            self.fail_job(job, Failure::WorkerLost, &reason);
        }
    }

    fn mark_held(&mut self, job: JobId, worker: WorkerId) {
        let now = self.now;
        let ring = self.cluster.jobs.get_mut(&job).and_then(|job| Arc::make_mut(job).ring.as_mut());
        let member = ring.and_then(|ring| ring.members.iter_mut().find(|member| member.worker == worker));
        if let Some(member) = member {
            member.last_held = now;
        }
    }

    /// A session ended. A member of a ring has some time to come back.
    pub(super) fn session_ended(&mut self, sender: Sender) {
        let now = self.now;
        let seconds = self.cluster.options.session_timeout / 1000;
        let Some(worker) = self.worker_mut(sender.worker) else { return };
        if worker.session != Some(sender.session) {
            return;
        }
        worker.session = None;
        worker.lost = Some(now);
        let host = worker.host_name.clone();
        if let Some((job, rank)) = worker.rank {
            let message = format!("rank {rank} on {host}: connection lost; waiting {seconds} s for it");
            self.record(job, EventBody::note(LogLevel::Warn, message));
        }
        self.cluster.placement_due = true;
    }

    /// A sign of life, and what the worker holds.
    pub(super) fn heartbeat(&mut self, sender: Sender, held: Vec<HeldRank>) -> Result<(), Refusal> {
        self.heard(sender)?;
        let held_now: BTreeSet<_> = held.iter().map(|held| (held.job, held.epoch)).collect();
        if let Some(worker) = self.worker_mut(sender.worker)
            && !worker.releasing.is_subset(&held_now)
        {
            worker.releasing.retain(|rank| held_now.contains(rank));
            self.cluster.placement_due = true;
        }
        for held in &held {
            if self.holds(sender.worker, held) {
                self.observe(sender.worker, held);
            } else {
                self.release_unknown(sender.worker, held);
            }
        }
        Ok(())
    }

    /// Notes that a worker was heard, if it speaks on its newest session.
    pub(super) fn heard(&mut self, sender: Sender) -> Result<(), Refusal> {
        let now = self.now;
        match self.worker_mut(sender.worker) {
            Some(worker) if worker.session == Some(sender.session) => {
                worker.last_sign = now;
                Ok(())
            }
            _ => Err(Refusal::StaleSession),
        }
    }

    /// The ring that counts on a worker, and its rank there.
    fn ring_of(&self, worker: WorkerId) -> Option<(JobId, u32)> {
        self.cluster.jobs.values().find_map(|job| {
            let rank = job.ring.as_ref()?.rank_of(worker)?;
            Some((job.id, u32::try_from(rank).ok()?))
        })
    }
}

#[cfg(test)]
mod language_tests;
