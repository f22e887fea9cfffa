//! The queue: which job gets a ring next.

use std::sync::Arc;

use ringtune_shared::ids::{Epoch, JobId, WorkerId};

use super::Turn;
use crate::core::deadlines::Subject;
use crate::core::effect::{Assignment, Down};
use crate::core::job::{Member, Phase, Ring};
use crate::core::job_state::JobState;
use crate::core::pin::Pin;
use crate::core::queue_walk::QueueWalk;
use crate::core::record::{EventBody, LogLevel};
use crate::core::scheduler::{Decision, Placement, Problem, place};
use crate::core::waiting::problem;

impl Turn<'_> {
    /// Gives free workers to queued jobs. What it returns says which are kept for those that have to wait.
    pub(super) fn place_queued_jobs(&mut self) -> QueueWalk {
        self.cluster.expire_latecomers();
        loop {
            let queued = self.cluster.count_jobs(JobState::Queued);
            let walk = self.walk_queue();
            // Who got workers stands further behind with their other jobs: others may come first now.
            if self.cluster.count_jobs(JobState::Queued) == queued {
                return walk;
            }
        }
    }

    fn walk_queue(&mut self) -> QueueWalk {
        let mut walk = QueueWalk::default();
        while let Some(id) = walk.next(self.cluster) {
            let Some(job) = self.cluster.jobs.get(&id) else { break };
            let precedence = self.cluster.precedence_of(job);
            let open = self.cluster.open_to(job).without_reserved(walk.kept(), precedence);
            let problem = problem(job);
            let world_size = problem.world_size.min(self.cluster.room_of(&job.queue.owner));
            match place(&Problem { world_size, ..problem }, &open) {
                Decision::Place(placement) => self.form_ring(id, placement),
                Decision::Wait(_) => walk.keep(self.cluster, job),
            }
        }
        walk
    }

    /// The next epoch of a job's ring.
    fn form_ring(&mut self, id: JobId, placement: Placement) {
        let members: Vec<Member> =
            placement.members.iter().filter_map(|worker| self.member(*worker)).collect();
        let hosts: Vec<&str> = members.iter().map(|member| member.host_name.as_str()).collect();
        let reason = format!("preparing {} rank(s) on {}", hosts.len(), hosts.join(", "));
        let reason = self.cut(&reason);
        let now = self.now;
        for member in &members {
            self.cluster.change_worker(member.worker, |worker| worker.last_held = now);
        }
        let Some(job) = self.job_mut(id) else { return };
        (job.rings, job.tries) = (job.rings + 1, job.tries + 1);
        let ring = Ring { formed: now, ..Ring::new(Epoch(job.rings), members) };
        self.set_state(id, JobState::Preparing, reason);
        // Out of the queue, where it stood by its pin, it gets one if it has none.
        if let Some(job) = self.job_mut(id) {
            job.pin.get_or_insert_with(|| {
                Arc::new(Pin {
                    numerics_class: placement.numerics_class,
                    threads_per_rank: placement.threads_per_rank,
                    precision: placement.precision,
                    version: ringtune_shared::version::VERSION.to_owned(),
                })
            });
        }
        self.cluster.set_ring(id, ring);
        self.cluster.deadlines.by(Subject::Job(id), now.plus(self.cluster.options.session_timeout));
        for note in placement.notes {
            self.record(id, EventBody::note(LogLevel::Info, note));
        }
        for worker in placement.members {
            self.assign(id, worker);
        }
    }

    pub(super) fn member(&self, id: WorkerId) -> Option<Member> {
        let worker = self.cluster.workers.get(&id)?;
        Some(Member {
            worker: id,
            incarnation: worker.incarnation,
            address: worker.address.clone(),
            host_name: worker.host_name.clone(),
            phase: Phase::Assigned,
            last_step: 0,
            reforms: worker.reforms,
            gone: false,
            newcomer: false,
            yields_to: None,
            pause: None,
        })
    }

    /// Tells a member of its rank.
    pub(super) fn assign(&mut self, id: JobId, worker: WorkerId) {
        let ring = self.cluster.jobs.get(&id).and_then(|job| job.ring.as_ref());
        let Some(rank) = ring.and_then(|ring| ring.rank_of(worker)) else { return };
        if let Some(assignment) = self.assignment(id, u32::try_from(rank).ok()) {
            self.tell(worker, Down::Assignment(Box::new(assignment)));
        }
    }

    /// What the worker of a rank is told, or one that prepares to join.
    pub(super) fn assignment(&self, id: JobId, rank: Option<u32>) -> Option<Assignment> {
        let job = self.cluster.jobs.get(&id)?;
        let (ring, pin) = (job.ring.as_ref()?, job.pin.as_ref()?);
        // Who joins gets the state from a member. Release 0.2.0 begins where the spec says.
        let resumes = rank.is_some() && ring.members.iter().all(|member| member.reforms);
        Some(Assignment {
            job: id,
            epoch: ring.epoch,
            members: ring.members.iter().map(|member| (member.worker, member.address.clone())).collect(),
            rank,
            spec: job.spec.clone().for_ranks(),
            threads_per_rank: pin.threads_per_rank,
            precision: pin.precision,
            numerics_class: pin.numerics_class.clone(),
            version: pin.version.clone(),
            protocol: self.protocol_of(ring),
            resume_from: job.checkpoint.filter(|_| resumes).map(|checkpoint| checkpoint.hash),
            proof: job.verification.as_ref().map(|verification| verification.last_step),
            trace: job.trace,
            orders: job.orders_of(ring.epoch),
        })
    }

    /// The newest protocol that all members speak, as far as they are known.
    pub(super) fn protocol_of(&self, ring: &Ring) -> u32 {
        let protocols = ring.members.iter().filter_map(|member| self.cluster.workers.get(&member.worker));
        let newest = self.cluster.options.dialect.protocols.max;
        protocols.map(|worker| worker.protocol).min().unwrap_or(newest)
    }
}

#[cfg(test)]
mod tests;
