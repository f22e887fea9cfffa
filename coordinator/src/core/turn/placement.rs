//! The queue: which job gets a ring next.

use ringtune_shared::ids::{Epoch, JobId, WorkerId};
use ringtune_shared::spec::MixedPrecision;

use super::Turn;
use crate::core::effect::{Assignment, Down};
use crate::core::job::{Job, JobState, Member, Phase, Ring};
use crate::core::record::{EventBody, LogLevel};
use crate::core::scheduler::{Candidate, Decision, Placement, Problem, place};
use crate::core::time::Time;
use crate::core::worker::{Worker, WorkerState};

impl Turn<'_> {
    /// Gives free workers to queued jobs, the oldest first.
    ///
    /// A job that could run if all connected workers were free keeps the ones behind it waiting, so
    /// that large jobs do not starve; one that could not even then lets them pass.
    pub(super) fn place_queued_jobs(&mut self) {
        self.cluster.placement_due = false;
        let mut ahead: Option<JobId> = None;
        for id in self.queue() {
            let Some(job) = self.cluster.jobs.get(&id) else { continue };
            let decision = place(&problem(job, &self.candidates(WorkerState::Idle)));
            let reason = match (decision, ahead) {
                (Decision::Place(placement), None) => {
                    self.form_ring(id, placement);
                    continue;
                }
                (Decision::Place(_), Some(first)) => format!("waiting for workers: job {first} comes first"),
                (Decision::Wait(reason), _) => {
                    let connected = self.candidates_of(|worker| worker.session.is_some());
                    if matches!(place(&problem(job, &connected)), Decision::Place(_)) {
                        ahead = ahead.or(Some(id));
                    }
                    reason
                }
            };
            if job.reason != reason
                && let Some(job) = self.job_mut(id)
            {
                job.reason = reason;
            }
        }
    }

    /// What a new job's first event says.
    pub(super) fn first_reason(&self, id: JobId) -> String {
        let Some(job) = self.cluster.jobs.get(&id) else { return String::new() };
        match place(&problem(job, &self.candidates(WorkerState::Idle))) {
            Decision::Place(_) => "submitted".to_owned(),
            Decision::Wait(reason) => reason,
        }
    }

    fn queue(&self) -> Vec<JobId> {
        let mut queue: Vec<(u64, JobId)> = self
            .cluster
            .jobs
            .values()
            .filter(|job| job.state == JobState::Queued)
            .map(|job| (job.number, job.id))
            .collect();
        queue.sort_unstable();
        queue.into_iter().map(|(_, id)| id).collect()
    }

    fn candidates(&self, state: WorkerState) -> Vec<Candidate> {
        self.candidates_of(|worker| worker.state() == state)
    }

    fn candidates_of(&self, wanted: impl Fn(&Worker) -> bool) -> Vec<Candidate> {
        let away: Vec<WorkerId> = self.members_away();
        self.cluster
            .workers
            .values()
            .filter(|worker| wanted(worker) && !away.contains(&worker.id))
            .map(|worker| Candidate {
                worker: worker.id,
                host_name: worker.host_name.clone(),
                numerics_class: worker.capabilities.numerics_class.clone(),
                bf16: worker.capabilities.bf16,
                threads: worker.capabilities.threads,
            })
            .collect()
    }

    /// Workers that a ring counts on although they do not know of the rank themselves (yet).
    fn members_away(&self) -> Vec<WorkerId> {
        let rings = self.cluster.jobs.values().filter_map(|job| Some((job.id, job.ring.as_ref()?)));
        rings
            .flat_map(|(job, ring)| ring.members.iter().map(move |member| (job, member.worker)))
            .filter(|(job, id)| {
                let known = self.cluster.workers.get(id);
                known.is_some_and(|worker| worker.rank.is_none_or(|(held, _)| held != *job))
            })
            .map(|(_, worker)| worker)
            .collect()
    }

    /// Epoch 1 of a job's ring.
    fn form_ring(&mut self, id: JobId, placement: Placement) {
        let members: Vec<Member> =
            placement.members.iter().filter_map(|worker| self.member(*worker)).collect();
        let hosts: Vec<&str> = members.iter().map(|member| member.host_name.as_str()).collect();
        let reason = format!("preparing {} rank(s) on {}", hosts.len(), hosts.join(", "));
        let reason = self.cut(&reason);
        for (rank, member) in members.iter().enumerate() {
            if let Some(worker) = self.worker_mut(member.worker) {
                worker.rank = Some((id, u32::try_from(rank).unwrap_or(u32::MAX)));
            }
        }
        if let Some(job) = self.job_mut(id) {
            job.precision = Some(placement.precision);
            job.ring = Some(Ring {
                epoch: Epoch::FIRST,
                members,
                threads_per_rank: placement.threads_per_rank,
                numerics_class: placement.numerics_class,
                patience: Time::default(),
                broken: None,
            });
        }
        self.set_state(id, JobState::Preparing, reason);
        for note in placement.notes {
            self.record(id, EventBody::note(LogLevel::Info, note));
        }
        for worker in placement.members {
            self.assign(id, worker);
        }
    }

    fn member(&self, id: WorkerId) -> Option<Member> {
        let worker = self.cluster.workers.get(&id)?;
        Some(Member {
            worker: id,
            incarnation: worker.incarnation,
            address: worker.address.clone(),
            host_name: worker.host_name.clone(),
            phase: Phase::Assigned,
            last_step: 0,
            last_held: self.now,
        })
    }

    /// Tells a member of its rank.
    pub(super) fn assign(&mut self, id: JobId, worker: WorkerId) {
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        let Some(ring) = &job.ring else { return };
        let Some(rank) = ring.rank_of(worker) else { return };
        let protocols = ring.members.iter().filter_map(|member| self.cluster.workers.get(&member.worker));
        let newest = self.cluster.options.dialect.protocols.max;
        let assignment = Assignment {
            job: id,
            epoch: ring.epoch,
            members: ring.members.iter().map(|member| (member.worker, member.address.clone())).collect(),
            rank: u32::try_from(rank).unwrap_or(u32::MAX),
            spec: job.spec.clone(),
            threads_per_rank: ring.threads_per_rank,
            precision: job.precision.unwrap_or(MixedPrecision::No),
            numerics_class: ring.numerics_class.clone(),
            protocol: protocols.map(|worker| worker.protocol).min().unwrap_or(newest),
        };
        self.tell(worker, Down::Assignment(Box::new(assignment)));
    }
}

fn problem<'a>(job: &'a Job, free: &'a [Candidate]) -> Problem<'a> {
    let before = job.resumed.as_ref().map(|resumed| &resumed.numerics);
    // What was decided at the first assignment is kept.
    let threads_per_rank = match (job.spec.cluster.threads_per_rank, before) {
        (0, Some(before)) => before.threads_per_rank,
        (wanted, _) => wanted,
    };
    Problem {
        world_size: job.spec.cluster.world_size,
        min_world_size: job.spec.cluster.min_world_size,
        precision: job.spec.mixed_precision(),
        threads_per_rank,
        preferred_class: before.map(|before| before.class.as_str()),
        free,
    }
}
