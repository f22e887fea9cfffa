//! The state: all jobs that have not ended, and all workers.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringtune_shared::ids::{JobId, WorkerId};
use ringtune_shared::version::Dialect;

use super::effect::{Effects, Refusal};
use super::input::Input;
use super::job::{Job, JobState};
use super::time::Time;
use super::turn::Turn;
use super::worker::{Worker, WorkerState};

/// Limits and times of the core. Times in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// What this coordinator speaks with workers.
    pub dialect: Dialect,
    /// After so long a silent session is lost, and a lost member has so long to come back.
    pub session_timeout: i64,
    /// So long the members of a ring have to come back after a restart of the coordinator.
    pub recovery: i64,
    /// So long ranks have to stop by themselves when a job is cancelled.
    pub cancel: i64,
    /// After a rank lost its neighbour, so long another rank has to say why.
    pub root_cause: i64,
    /// So long the last steps may come after all ranks finished.
    pub finish: i64,
    /// A lost worker without a rank is forgotten after so long.
    pub forget_worker: i64,
    /// Jobs in the queue.
    pub queued_jobs: usize,
    /// Workers known.
    pub workers: usize,
    /// Files of a job.
    pub artifacts_per_job: u64,
    /// Characters of a log line or a reason; the rest is cut off.
    pub text_length: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dialect: Dialect::ours(),
            session_timeout: 15_000,
            recovery: 60_000,
            cancel: 30_000,
            root_cause: 5_000,
            finish: 10_000,
            forget_worker: 600_000,
            queued_jobs: 1000,
            workers: 1000,
            artifacts_per_job: 10_000,
            text_length: 4096,
        }
    }
}

/// What a store gives back after a restart.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// Every job that has not ended.
    pub jobs: Vec<Job>,
    /// The number of the newest job there ever was; 0: none.
    pub last_number: u64,
}

/// All that the coordinator decides upon. Cheap to clone: jobs and workers are shared.
#[derive(Debug, Clone)]
pub struct Cluster {
    pub(super) options: Arc<Options>,
    pub(super) jobs: BTreeMap<JobId, Arc<Job>>,
    pub(super) workers: BTreeMap<WorkerId, Arc<Worker>>,
    pub(super) last_number: u64,
    /// Something changed that may let a queued job start, or its reason to wait.
    pub(super) placement_due: bool,
}

impl Cluster {
    /// The state after a start: queued jobs queue again, rings wait for their members.
    pub fn recover(options: Options, recovered: Recovered, now: Time) -> Self {
        let patience = now.plus(options.recovery);
        let jobs = recovered.jobs.into_iter().map(|mut job| {
            if let Some(ring) = &mut job.ring {
                ring.patience = patience;
            }
            if let Some(cancel) = &mut job.cancel {
                cancel.deadline = patience;
            }
            (job.id, Arc::new(job))
        });
        Self {
            jobs: jobs.collect(),
            options: Arc::new(options),
            workers: BTreeMap::new(),
            last_number: recovered.last_number,
            placement_due: true,
        }
    }

    /// Takes in one input.
    ///
    /// # Errors
    /// A [`Refusal`] leaves the state as it was.
    pub fn apply(&mut self, input: Input, now: Time) -> Result<Effects, Refusal> {
        Turn::new(self, now).run(input)
    }

    /// The jobs that have not ended.
    pub fn jobs(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.jobs.values()
    }

    /// A job that has not ended.
    pub fn job(&self, id: JobId) -> Option<&Arc<Job>> {
        self.jobs.get(&id)
    }

    /// The workers, in the order of their ids.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.workers.values()
    }

    /// One worker.
    pub fn worker(&self, id: WorkerId) -> Option<&Arc<Worker>> {
        self.workers.get(&id)
    }

    /// How many jobs are in `state`; 0 for the final ones, which are not kept here.
    pub fn count_jobs(&self, state: JobState) -> usize {
        self.jobs.values().filter(|job| job.state == state).count()
    }

    /// How many workers are in `state`.
    pub fn count_workers(&self, state: WorkerState) -> usize {
        self.workers.values().filter(|worker| worker.state() == state).count()
    }
}
