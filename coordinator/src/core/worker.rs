//! A worker, as the coordinator knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringtune_shared::ids::{Epoch, JobId, WorkerId};

use super::session::SessionId;
use super::time::Time;

/// Owners that are remembered of one worker whose jobs failed there: without TLS anybody can make up names.
const MOST_DOUBTS: usize = 16;

/// What a node can do, as it says in its hello.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Of the worker, "major.minor.patch".
    pub version: String,
    /// Of the libtorch it runs on.
    pub libtorch_version: String,
    /// The processor's name, as it gives it itself.
    pub cpu_model: String,
    /// amx_bf16, avx512_bf16, avx2 and their like.
    pub cpu_flags: Vec<String>,
    /// Cores that it may use.
    pub cores: u32,
    /// NUMA nodes.
    pub numa_nodes: u32,
    /// Main memory in bytes.
    pub memory_bytes: u64,
    /// Workers of one class agree to the bit.
    pub numerics_class: String,
    /// It multiplies bf16 in hardware.
    pub bf16: bool,
    /// Threads that a rank gets when the job leaves it open.
    pub threads: u32,
    /// What jobs may ask for, beside its processor's flags.
    pub labels: BTreeMap<String, String>,
}

/// How a worker is seen by users.
///
/// | from | to   | when                                             |
/// |------|------|--------------------------------------------------|
/// | (none) | Idle | Hello                                          |
/// | Idle | Busy | it is given a rank                               |
/// | Busy | Idle | it says that it let the rank go                  |
/// | Idle, Busy | Lost | its session ended or fell silent           |
/// | Lost | Idle, Busy | Hello of this or a newer incarnation       |
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerState {
    /// Connected and free.
    Idle,
    /// Connected; has a rank or is letting one go.
    Busy,
    /// Its session broke.
    Lost,
}

/// A worker that said hello since the coordinator started, and is not forgotten yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// Kept in its state folder.
    pub id: WorkerId,
    /// Counts the starts of its daemon.
    pub incarnation: u64,
    /// Its session, while it has one.
    pub session: Option<SessionId>,
    /// For people.
    pub host_name: String,
    /// host:port of its RingService.
    pub address: String,
    /// What it can do.
    pub capabilities: Arc<Capabilities>,
    /// The protocol of its newest session.
    pub protocol: u32,
    /// It can go from one ring of a job into the next.
    pub reforms: bool,
    /// It can compute steps again without making files of them.
    pub verifies: bool,
    /// Its ranks carry out orders.
    pub orders: bool,
    /// It says whom it reaches when it is asked.
    pub looks: bool,
    /// A user wants it to get no rank.
    pub draining: bool,
    /// It said in this session that it is about to end: it gets no rank.
    pub leaving: bool,
    /// When this session began.
    pub connected: Time,
    /// When it was last heard.
    pub last_sign: Time,
    /// When its session was lost.
    pub lost: Option<Time>,
    /// When it last said that it holds its rank, if a ring gave it one (`Cluster::rank_of`).
    pub last_held: Time,
    /// Ranks it was told to let go and may still hold.
    pub releasing: BTreeSet<(JobId, Epoch)>,
    /// How often in turn it failed at ranks of several owners' jobs, so that it may be its own fault.
    pub failures: u32,
    /// After such a failure it gets no rank until then.
    pub rests_until: Option<Time>,
    /// Whose jobs came to nothing on it since it prepared one well, an entry for each, the newest at the end.
    pub doubts: Vec<Doubt>,
    /// Whose job it failed at last by what may be its own fault.
    pub suspected_by: Option<String>,
    /// The model that it loaded last: see [`Job::model`](super::Job::model). Not stored.
    pub model: Option<String>,
}

/// A worker failed at jobs of one owner by what may be its own fault, or that of those jobs. That is no reason to take it from
/// anybody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// Whose jobs.
    pub owner: String,
    /// How often in turn.
    pub times: u32,
    /// It gets no rank of this owner until then. None: that is over.
    pub until: Option<Time>,
}

/// A worker's place in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingPlace {
    /// It has this rank.
    Rank(JobId, u32),
    /// It prepares to join the ring of this job.
    Joins(JobId),
}

impl RingPlace {
    /// The job.
    pub fn job(self) -> JobId {
        match self {
            Self::Rank(job, _) | Self::Joins(job) => job,
        }
    }
}

impl Worker {
    /// Whether it gets no rank of this owner now, while others may have it.
    pub(super) fn rests_for(&self, owner: &str) -> bool {
        self.doubts.iter().any(|doubt| doubt.until.is_some() && doubt.owner == owner)
    }

    /// A job of this owner came to nothing on it: until when it gets no rank of that owner. `first`, `longest`: milliseconds.
    pub(super) fn doubt(&mut self, owner: String, now: Time, (first, longest): (i64, i64)) -> Time {
        let known = self.doubts.iter().position(|doubt| doubt.owner == owner);
        let times = known.map_or(0, |place| self.doubts.remove(place).times);
        let until = now.plus(first.saturating_mul(1 << times.min(32)).min(longest));
        if self.doubts.len() >= MOST_DOUBTS {
            self.doubts.remove(0);
        }
        self.doubts.push(Doubt { owner, times: times.saturating_add(1), until: Some(until) });
        until
    }

    /// Whether the two are on one machine, as far as they say: what that does not have or reach, neither does.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        let host = |worker: &Self| worker.address.rsplit_once(':').map(|(host, _)| host.to_owned());
        self.host_name == other.host_name && host(self) == host(other)
    }

    /// How users see it. `has_rank`: a ring gave it one, or it prepares for one.
    pub(super) fn state(&self, has_rank: bool) -> WorkerState {
        if self.session.is_none() {
            WorkerState::Lost
        } else if has_rank || !self.releasing.is_empty() {
            WorkerState::Busy
        } else {
            WorkerState::Idle
        }
    }
}
