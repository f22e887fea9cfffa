//! Workers come, go, and come back.

use std::collections::BTreeSet;

use ringtune_shared::ids::{Epoch, JobId, WorkerId};
use ringtune_shared::version::{Agreement, Dialect, LINKS, ORDERS, RE_FORM, VERIFY};

use super::Turn;
use super::ranks::Hold;
use crate::core::deadlines::Subject;
use crate::core::effect::{Action, Down};
use crate::core::input::{HeldRank, Hello};
use crate::core::job::Phase;
use crate::core::loss::Loss;
use crate::core::refusal::Refusal;
use crate::core::session::{Sender, SessionId};
use crate::core::worker::{RingPlace, Worker, WorkerState};

impl Turn<'_> {
    /// A worker opened a session: the newest one of the newest incarnation counts.
    pub(super) fn hello(&mut self, session: SessionId, hello: Hello) -> Result<(), Refusal> {
        let agreement = self.check_hello(&hello)?;
        self.check_address(&hello)?;
        self.make_room(&hello)?;
        let id = hello.worker;

        // 1. Put the new session in the old one's place.
        let known = self.cluster.workers.get(&id).cloned();
        if let Some(old) = known.as_ref().and_then(|worker| worker.session) {
            self.effects.actions.push(Action::Close(old, "another session of this worker began".to_owned()));
        }
        let releasing = known.as_ref().map(|worker| worker.releasing.clone()).unwrap_or_default();
        let held_jobs: BTreeSet<JobId> = hello.held.iter().map(|held| held.job).collect();
        let worker = Worker {
            id,
            incarnation: hello.incarnation,
            session: Some(session),
            host_name: self.cut(&hello.host_name),
            address: hello.address,
            capabilities: hello.capabilities,
            protocol: agreement.protocol,
            reforms: agreement.features.iter().any(|feature| feature == RE_FORM),
            verifies: agreement.features.iter().any(|feature| feature == VERIFY),
            orders: agreement.features.iter().any(|feature| feature == ORDERS),
            looks: agreement.features.iter().any(|feature| feature == LINKS),
            draining: self.cluster.drained.contains(&id),
            leaving: false,
            connected: self.now,
            last_sign: self.now,
            lost: None,
            last_held: known.as_ref().map(|worker| worker.last_held).unwrap_or_default(),
            releasing: releasing.into_iter().filter(|(job, _)| held_jobs.contains(job)).collect(),
            failures: known.as_ref().map_or(0, |worker| worker.failures),
            rests_until: known.as_ref().and_then(|worker| worker.rests_until),
            doubts: known.as_ref().map(|worker| worker.doubts.clone()).unwrap_or_default(),
            suspected_by: known.as_ref().and_then(|worker| worker.suspected_by.clone()),
            model: known.as_ref().and_then(|worker| worker.model.clone()),
        };
        let silent = self.now.plus(self.cluster.options.session_timeout);
        self.cluster.insert_worker(worker);
        self.cluster.deadlines.by(Subject::Worker(id), silent);
        self.effects.actions.push(Action::Send(session, Down::Welcome(agreement)));

        // 2. Ranks that no ring knows: let them go, even if it was told so on an older session, and
        // before it is given another one.
        for held in &hello.held {
            if self.hold_of(id, held).is_none() {
                self.release(id, held.job, held.epoch, "the coordinator has no such rank");
            }
        }

        // 3. The place that a ring gave it: does it still hold it?
        match self.cluster.place_of(id) {
            Some(RingPlace::Rank(job, rank)) => {
                self.member_is_back(job, rank, id, hello.incarnation, &hello.held);
                self.look_at_ring(job);
            }
            Some(RingPlace::Joins(job)) => {
                let held = hello.held.iter().find(|held| self.hold_of(id, held) == Some(Hold::Joins));
                self.joiner_is_back(job, id, hello.incarnation, held);
            }
            None => {}
        }
        Ok(())
    }

    fn check_hello(&self, hello: &Hello) -> Result<Agreement, Refusal> {
        let options = &self.cluster.options;
        let agreement = Dialect::agree(&hello.dialect, &options.dialect)?;
        match self.cluster.workers.get(&hello.worker) {
            Some(known) if known.incarnation > hello.incarnation => {
                Err(Refusal::OlderIncarnation { given: hello.incarnation, newest: known.incarnation })
            }
            _ => Ok(agreement),
        }
    }

    /// Two workers of one address cannot be in one ring. The one that has a session keeps it; one that is gone gives way
    /// to a worker that was installed anew.
    fn check_address(&self, hello: &Hello) -> Result<(), Refusal> {
        let holder = self.cluster.pool.at_address(&hello.address).filter(|holder| *holder != hello.worker);
        match holder.and_then(|holder| self.cluster.workers.get(&holder)) {
            Some(holder) if holder.session.is_some() => {
                Err(Refusal::AddressTaken { address: hello.address.clone(), holder: holder.id })
            }
            _ => Ok(()),
        }
    }

    /// Forgets whom the worker replaces, and of those that are gone the first, where there are too many to remember.
    fn make_room(&mut self, hello: &Hello) -> Result<(), Refusal> {
        let limit = self.cluster.options.limits.workers;
        let known = self.cluster.workers.get(&hello.worker);
        let connected = known.is_some_and(|worker| worker.session.is_some());
        if !connected && self.cluster.pool.connected() >= limit {
            return Err(Refusal::TooManyWorkers { limit });
        }
        let is_known = known.is_some();
        if let Some(before) = self.cluster.pool.at_address(&hello.address)
            && before != hello.worker
            && self.cluster.place_of(before).is_none()
        {
            self.cluster.remove_worker(before);
        }
        if !is_known
            && self.cluster.pool.count_of(WorkerState::Lost) >= limit
            && let Some(longest_lost) = self.cluster.pool.longest_lost()
        {
            self.cluster.remove_worker(longest_lost);
        }
        Ok(())
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
        let Some(ring) = self.cluster.jobs.get(&job).and_then(|job| job.ring.as_ref()) else { return };
        let Some(member) = ring.member(worker) else { return };
        // A later ring begins with the word to enter it.
        let started = ring.started && ring.reformed == 0;
        let (restarted, unheard) = (member.incarnation != incarnation, member.phase == Phase::Assigned);
        let host = member.host_name.clone();
        let found = held.iter().find_map(|held| Some((held, self.hold_of(worker, held)?)));
        if let Some((held, hold)) = found {
            self.observe(worker, held, hold);
            self.say_again(job, worker, held.epoch, hold, started && held.phase == Phase::Ready);
        } else if restarted {
            let reason = format!("worker restarted: rank {rank} on {host} is lost");
            self.lose(job, worker, Loss::Restarted, &reason);
        } else {
            let reason = format!("rank {rank} on {host}: the worker came back without it");
            self.lose(job, worker, Loss::BackWithout { unheard }, &reason);
        }
    }

    /// Says to a member that came back with its rank what it may have missed. `start`: that all were ready.
    fn say_again(&mut self, job: JobId, worker: WorkerId, epoch: Epoch, hold: Hold, start: bool) {
        let Some(known) = self.cluster.jobs.get(&job).filter(|job| job.ring.is_some()) else { return };
        if let Some(reason) = known.told_to_stop().and_then(|stop| stop.goal.reason()) {
            let reason = reason.to_owned();
            self.tell(worker, Down::StopRank { job, epoch, reason, keep_artifacts: true });
        } else if hold == Hold::Older {
            self.tell_to_enter(job, worker, false, "the ring has other members by now");
        } else if start {
            self.tell(worker, Down::StartRank(job, epoch));
        }
    }

    pub(super) fn mark_held(&mut self, worker: WorkerId) {
        let now = self.now;
        self.cluster.change_worker(worker, |worker| worker.last_held = now);
    }

    /// A session ended. A member of a ring has some time to come back.
    pub(super) fn session_ended(&mut self, sender: Sender) {
        let now = self.now;
        let Some(worker) = self.cluster.workers.get(&sender.worker) else { return };
        if worker.session != Some(sender.session) {
            return;
        }
        let host = worker.host_name.clone();
        self.take_session(sender.worker);
        if let Some(RingPlace::Joins(job)) = self.cluster.place_of(sender.worker) {
            let back_by = now.plus(self.cluster.options.session_timeout);
            self.cluster.deadlines.by(Subject::Job(job), back_by);
        }
        if let Some((job, rank)) = self.cluster.rank_of(sender.worker) {
            let reason = format!("rank {rank} on {host}: connection lost");
            self.lose(job, sender.worker, Loss::Away, &reason);
        }
    }

    /// A worker has no session from now on.
    pub(super) fn take_session(&mut self, worker: WorkerId) {
        let now = self.now;
        self.cluster.change_worker(worker, |worker| {
            worker.session = None;
            worker.lost = Some(now);
        });
        let forgotten = now.plus(self.cluster.options.forget_worker);
        self.cluster.deadlines.by(Subject::Worker(worker), forgotten);
    }

    /// A sign of life, and what the worker holds.
    pub(super) fn heartbeat(&mut self, sender: Sender, held: Vec<HeldRank>) -> Result<(), Refusal> {
        self.heard(sender)?;
        // By job, not by epoch: a rank that leaves one ring may be on its way out of the next.
        let held_jobs: BTreeSet<JobId> = held.iter().map(|held| held.job).collect();
        self.cluster.change_worker(sender.worker, |worker| {
            worker.releasing.retain(|(job, _)| held_jobs.contains(job));
        });
        for held in &held {
            match self.hold_of(sender.worker, held) {
                Some(hold) => self.observe(sender.worker, held, hold),
                None => self.release_unknown(sender.worker, held),
            }
        }
        Ok(())
    }

    /// Notes that a worker was heard, if it speaks on its newest session.
    pub(super) fn heard(&mut self, sender: Sender) -> Result<(), Refusal> {
        let now = self.now;
        let heard = self.cluster.change_worker(sender.worker, |worker| {
            let newest = worker.session == Some(sender.session);
            if newest {
                worker.last_sign = now;
            }
            newest
        });
        if heard == Some(true) { Ok(()) } else { Err(Refusal::StaleSession) }
    }
}

#[cfg(test)]
mod language_tests;
#[cfg(test)]
mod tests;
