//! A job and the ring it runs on.

use std::sync::Arc;

use ringtune_shared::checkpoint::Resumed;
use ringtune_shared::ids::{ContentHash, Epoch, JobId, WorkerId};
use ringtune_shared::job::{JobSpec, QueueSpec};
use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::job_state::JobState;
use super::pin::Pin;
use super::record::Checkpoint;
use super::refusal::Refusal;
use super::stop::Stop;
use super::time::Time;

/// What a user asked for, and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The name of the job.
    pub id: JobId,
    /// Counts the jobs of this coordinator; the queue's order.
    pub number: u64,
    /// What is to be done, every default filled in.
    pub spec: Arc<JobSpec>,
    /// Whose it is, and how urgent.
    pub queue: Arc<QueueSpec>,
    /// The client's name for the request, if it gave one.
    pub request: Option<RequestKey>,
    /// What the checkpoint has that it goes on from, if it does.
    pub resumed: Option<Resumed>,
    /// Where it is in its life.
    pub state: JobState,
    /// Why it is in this state.
    pub reason: String,
    /// It waits behind another job. Never stored: found out when somebody asks.
    pub waits_behind: bool,
    /// What failed, where it did.
    pub failure: Option<Failure>,
    /// When it was created.
    pub created: Time,
    /// When it last changed.
    pub updated: Time,
    /// When it first left the queue.
    pub started: Option<Time>,
    /// When it ended.
    pub ended: Option<Time>,
    /// Steps done, those before its checkpoint included.
    pub step: u64,
    /// The loss of the last step.
    pub loss: Option<f64>,
    /// The sequence number of the newest event.
    pub last_sequence: u64,
    /// Files kept so far, counting a replaced one again.
    pub artifacts: u64,
    /// Rings formed for it so far, which is the epoch of the newest one.
    pub rings: u64,
    /// Its ring, while it is Preparing or Running.
    pub ring: Option<Arc<Ring>>,
    /// What all its rings have in common, once the first one was formed, unless none of them started; kept after the end.
    pub pin: Option<Arc<Pin>>,
    /// It is on its way out of its ring.
    pub stop: Option<Stop>,
    /// The newest of its checkpoints that are there; kept after the end.
    pub checkpoint: Option<Checkpoint>,
}

impl Job {
    /// Refuses what a rank of another epoch than that of this job's ring wants done to the job. `None`: no rank asks.
    ///
    /// # Errors
    /// [`Refusal::OtherEpoch`].
    pub fn check_epoch(&self, given: Option<Epoch>) -> Result<(), Refusal> {
        let now = self.ring.as_ref().map(|ring| ring.epoch);
        match given {
            Some(given) if now != Some(given) => Err(Refusal::OtherEpoch { job: self.id, given, now }),
            _ => Ok(()),
        }
    }

    /// Whether a ring of it may have computed something: this one started, or an earlier one did steps.
    pub(super) fn has_begun(&self) -> bool {
        let first = self.resumed.as_ref().map_or(0, |resumed| resumed.step);
        self.step > first || self.ring.as_ref().is_some_and(|ring| ring.started)
    }

    /// The stop that its ranks were told of, if they were.
    pub fn told_to_stop(&self) -> Option<&Stop> {
        self.stop.as_ref().filter(|stop| stop.goal.reason().is_some())
    }
}

/// What makes a repeated CreateJob find its job again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestKey {
    /// Chosen by the client.
    pub id: String,
    /// The hash of the spec as sent, and of the queue where it says anything.
    pub fingerprint: ContentHash,
}

/// One membership of a job's ring.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ring {
    /// From 1.
    pub epoch: Epoch,
    /// In rank order.
    pub members: Vec<Member>,
    /// All its ranks were ready, and were told to start.
    #[serde(default)]
    pub started: bool,
    /// Until then members may be away: set after a restart of the coordinator.
    #[serde(skip)]
    pub patience: Time,
    /// A rank lost its neighbour. Not stored: the worker tells it again when it is back.
    #[serde(skip)]
    pub broken: Option<Broken>,
}

/// A ring in which a rank failed because it lost a neighbour, while nobody has said why yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// Until then another rank's reason counts more.
    pub fail_by: Time,
    /// The lowest rank that lost its neighbour.
    pub rank: u32,
    /// What that rank said.
    pub reason: String,
}

/// A rank of a ring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Who has the rank.
    pub worker: WorkerId,
    /// Which start of its daemon; another one has lost the rank.
    pub incarnation: u64,
    /// host:port, where its neighbours reach it.
    pub address: String,
    /// For messages.
    pub host_name: String,
    /// How far it is. Not stored: the worker tells it again when it is back.
    #[serde(skip)]
    pub phase: Phase,
    /// The step that it finished with. Not stored either.
    #[serde(skip)]
    pub last_step: u64,
}

/// How far a rank is.
///
/// `Assigned -> Preparing -> Ready -> Training -> Finished`, and from any of them to
/// `Failed` or `Stopped`. The last three are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    /// Nothing heard of it yet.
    #[default]
    Assigned,
    /// Fetches, loads, encodes.
    Preparing,
    /// Waits for StartRank.
    Ready,
    /// Trains.
    Training,
    /// Done, artifacts kept.
    Finished,
    /// Ended by an error.
    Failed,
    /// Ended on request.
    Stopped,
}

impl Phase {
    /// Whether the rank does no more work.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Stopped)
    }
}

impl Ring {
    /// The rank of `worker` in this ring.
    pub fn rank_of(&self, worker: WorkerId) -> Option<usize> {
        self.members.iter().position(|member| member.worker == worker)
    }

    /// The rank that a worker has in this ring.
    pub fn member(&self, worker: WorkerId) -> Option<&Member> {
        self.members.iter().find(|member| member.worker == worker)
    }

    /// The rank that a worker has in this ring, to be changed.
    pub fn member_mut(&mut self, worker: WorkerId) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.worker == worker)
    }

    /// Whether every rank is in a phase that `wanted` accepts.
    pub fn all(&self, wanted: impl Fn(Phase) -> bool) -> bool {
        self.members.iter().all(|member| wanted(member.phase))
    }
}
