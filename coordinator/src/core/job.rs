//! A job and the ring it runs on.

use std::collections::BTreeSet;
use std::sync::Arc;

use ringtune_shared::checkpoint::Resumed;
use ringtune_shared::ids::{ContentHash, Epoch, JobId, WorkerId};
use ringtune_shared::job::{JobSpec, LiveOrder, QueueSpec};
use ringtune_shared::trace::TraceContext;
use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::job_state::JobState;
use super::links::Links;
use super::pin::Pin;
use super::record::{Checkpoint, Validation};
use super::refusal::Refusal;
use super::stop::Stop;
use super::sweep_place::SweepPlace;
use super::time::Time;
use super::verification::Verification;

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
    /// What it waits for. Never stored either.
    pub wait: Option<Wait>,
    /// What users ordered of it, in the order of the numbers. What is settled of it, and decides bits, is in `spec`, too.
    pub orders: Arc<Vec<Ordered>>,
    /// A more urgent job took its workers, and it waits since.
    pub preempted: bool,
    /// Since when it waits in the queue. Not stored: for one that never had a ring it is its creation, for others the start of
    /// the coordinator at the earliest.
    pub waits_since: Time,
    /// It has waited so long that it comes before all that have not. Not stored: the time says it.
    pub overdue: bool,
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
    /// The validation loss of its result so far.
    pub validation: Option<Validation>,
    /// Its place in its sweep, if it is of one.
    pub sweep: Option<Arc<SweepPlace>>,
    /// The sequence number of the newest event.
    pub last_sequence: u64,
    /// Files kept so far, counting a replaced one again.
    pub artifacts: u64,
    /// Rings formed for it so far, which is the epoch of the newest one.
    pub rings: u64,
    /// Rings that were formed for it since it last did a new step: see [`QueueSpec::worker_retries`].
    pub tries: u64,
    /// Errors of its own after which it was tried again.
    pub errors: u64,
    /// Its ring, while it is Preparing or Running.
    pub ring: Option<Arc<Ring>>,
    /// What all its rings have in common, once the first one was formed, unless none of them started; kept after the end.
    pub pin: Option<Arc<Pin>>,
    /// It is on its way out of its ring.
    pub stop: Option<Stop>,
    /// The newest of its checkpoints that are there; kept after the end.
    pub checkpoint: Option<Checkpoint>,
    /// Whose steps it computes again; none: it is an ordinary job.
    pub verification: Option<Verification>,
    /// The call that made it, for those who trace it. Decides nothing.
    pub trace: Option<TraceContext>,
    /// Workers whose settings keep from it what it asks for; they get a rank of it only where no others could take it. Not stored.
    pub refused_by: BTreeSet<WorkerId>,
    /// Which of its workers reach each other. Not stored.
    pub links: Links,
    /// How many rings failed because of that. Not stored.
    pub refusals: u64,
}

impl Job {
    /// Refuses what a rank of another epoch than that of this job's ring wants done to the job. `None`: no rank asks.
    /// Older epochs of the ring that had the same rank 0 count too: what it sent on its way into the newest one is its own.
    ///
    /// # Errors
    /// [`Refusal::OtherEpoch`].
    pub fn check_epoch(&self, given: Option<Epoch>) -> Result<(), Refusal> {
        let Some(given) = given else { return Ok(()) };
        match &self.ring {
            Some(ring) if (ring.led_from()..=ring.epoch).contains(&given) => Ok(()),
            ring => {
                let now = ring.as_ref().map(|ring| ring.epoch);
                Err(Refusal::OtherEpoch { job: self.id, given, now })
            }
        }
    }

    /// Whether a ring of it may have computed something: this one started, or an earlier one did steps.
    pub(super) fn has_begun(&self) -> bool {
        let first = self.resumed.as_ref().map_or(0, |resumed| resumed.step);
        self.step > first || self.ring.as_ref().is_some_and(|ring| ring.started)
    }

    /// Whether it is to be paused as soon as it has left its ring.
    pub fn pauses(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.pauses)
    }

    /// Rings that are formed for it at most without a new step, while they fail by no fault of its own.
    pub(super) fn most_tries(&self) -> u64 {
        u64::from(self.queue.worker_retries) + 1
    }

    /// How urgent it is in the queue: its priority, or more than any.
    pub(super) fn urgency(&self) -> u32 {
        if self.overdue { u32::MAX } else { self.queue.priority }
    }

    /// The numerics class that its next ring has to be of, if only one will do. Of a job that prepares: where it were queued
    /// again.
    pub(super) fn bound_to(&self) -> Option<&str> {
        let stays = self.state == JobState::Queued || self.has_begun() || self.verification.is_some();
        self.pin.as_ref().filter(|_| stays).map(|pin| pin.numerics_class.as_str())
    }

    /// The stop that its ranks were told of, if they were.
    pub fn told_to_stop(&self) -> Option<&Stop> {
        self.stop.as_ref().filter(|stop| stop.goal.reason().is_some())
    }

    /// It as it comes back from a store. For tests.
    pub fn as_stored(&self) -> Self {
        let mut job =
            Self { links: Links::default(), waits_since: Time::default(), overdue: false, ..self.clone() };
        if let Some(ring) = job.ring.as_mut().map(Arc::make_mut) {
            ring.forget_what_is_not_stored();
        }
        if let Some(stop) = &mut job.stop {
            stop.deadline = Time::default();
        }
        job
    }
}

/// An order of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ordered {
    /// The order.
    #[serde(flatten)]
    pub live: LiveOrder,
    /// The epoch of the ring whose members are told of it. None: its ring has not changed since it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
}

/// What a job in the queue waits for. Workers are counted that could take it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Workers that it needs to start.
    pub needed: u32,
    /// Those of one numerics class that are free, at most.
    pub free: usize,
    /// Those that there would be if no other job had one.
    pub usable: usize,
    /// Jobs before it in the queue.
    pub ahead: usize,
    /// The first of the jobs that the free workers are kept for.
    pub behind: Option<JobId>,
    /// Since when it waits.
    pub since: Time,
    /// When it may start, by what the jobs that run have left to do and what is needed before it. None: nobody can say.
    pub start: Option<Time>,
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
    /// When. Release 0.2.0 stored none.
    #[serde(default)]
    pub formed: Time,
    /// All its ranks were ready, and were told to start.
    #[serde(default)]
    pub started: bool,
    /// Workers that prepare for the job while it runs, in the order in which they came. None of them is a member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joining: Vec<Joiner>,
    /// How often its members changed since it came from the queue: as many epochs before this one are its own too.
    #[serde(default)]
    pub reformed: u64,
    /// For how many epochs before this one rank 0 was the same.
    #[serde(default)]
    pub led: u64,
    /// Its members leave it at the end of a step, as the job is to be paused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pauses: bool,
    /// It is on its way from one membership to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reforming: Option<Reforming>,
    /// How often in a row it broke without a new step.
    #[serde(default)]
    pub fruitless: u32,
    /// The link that broke last, if no step was done since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<BrokenLink>,
    /// Until then members may be away: set after a restart of the coordinator.
    #[serde(skip)]
    pub patience: Time,
    /// As `patience`, for members of a broken ring: the others wait for them no longer.
    #[serde(skip)]
    pub returns_by: Time,
    /// A rank lost its neighbour. Not stored: the worker tells it again when it is back.
    #[serde(skip)]
    pub broken: Option<Broken>,
    /// Why the rank failed that failed last: the reason to give where nobody is left. Not stored.
    #[serde(skip)]
    pub last_failure: Option<String>,
    /// When the first new step was stored since it came from the queue, and which: how fast it is. Not stored.
    #[serde(skip)]
    pub paced: Option<(Time, u64)>,
}

/// A ring that has not done a step since its members changed, or that cannot go on with those that are left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reforming {
    /// Since when.
    pub since: Time,
    /// Nobody was lost: somebody joined or left at the end of a step.
    pub planned: bool,
    /// Too few members are left, and wait for other workers until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare_by: Option<Time>,
}

/// Two neighbours that lost each other while both of them live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokenLink {
    /// The one with the lower rank comes first.
    pub workers: (WorkerId, WorkerId),
    /// How often in a row.
    pub times: u32,
}

/// A worker that prepares for a job that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joiner {
    /// Who, and how far it is.
    pub member: Member,
    /// The epoch that it knows its place by: that of the ring when it was asked.
    pub epoch: Epoch,
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
    /// Its worker can go into another ring of the job with what it holds.
    #[serde(default)]
    pub reforms: bool,
    /// It is lost, or has left: it has its place in the order of the ranks only, until the next epoch.
    #[serde(default)]
    pub gone: bool,
    /// It came into a ring that runs, and has not got the state from another member yet.
    #[serde(default)]
    pub newcomer: bool,
    /// It leaves the ring at the end of a step, for this job: as long as that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub yields_to: Option<JobId>,
    /// Since when it waits for another ring, and why. Not stored.
    #[serde(skip)]
    pub pause: Option<Pause>,
}

/// Why a rank waits for another ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// When it said so.
    pub since: Time,
    /// What it saw of a neighbour; none: it waits at the end of a step.
    pub trouble: Option<Trouble>,
}

/// What a rank saw of the neighbour that it lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What happened.
    pub kind: TroubleKind,
    /// The neighbour, in the ring of the epoch in which the rank says so.
    pub rank: Option<u32>,
    /// In words.
    pub text: String,
}

/// What happened to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TroubleKind {
    /// The connection ended: the neighbour, or its own ring, is gone.
    Closed,
    /// No sign of life on a connection that stands.
    Silent,
    /// It could not be reached when the ring was formed.
    Unreachable,
    /// What it sent was damaged.
    Damaged,
    /// A newer worker's finer distinction.
    Unknown,
}

/// How far a rank is.
///
/// `Assigned -> Preparing -> Ready -> Training -> Finished`, and from any of them to
/// `Failed` or `Stopped`. The last three are final. A rank that trained may wait for another ring or, but for rank 0, have
/// done all its steps.
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
    /// Its ring broke, or it left it after a step: it keeps its state and waits for the next ring.
    Waiting,
    /// All steps are done: it keeps its state until the job's files are here.
    Done,
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

    /// Whether a rank can come from `before` to this phase while its ring stays the same.
    pub(super) fn follows(self, before: Self) -> bool {
        match (before, self) {
            (before, _) if before.is_terminal() => false,
            (Self::Done, Self::Waiting) => true,
            (before, after) => after > before,
        }
    }
}

impl Ring {
    /// One that has just been formed.
    pub fn new(epoch: Epoch, members: Vec<Member>) -> Self {
        Self {
            epoch,
            members,
            formed: Time::default(),
            started: false,
            joining: Vec::new(),
            reformed: 0,
            led: 0,
            pauses: false,
            reforming: None,
            fruitless: 0,
            link: None,
            patience: Time::default(),
            returns_by: Time::default(),
            broken: None,
            last_failure: None,
            paced: None,
        }
    }

    /// The rank of `worker` in this ring.
    pub fn rank_of(&self, worker: WorkerId) -> Option<usize> {
        self.members.iter().position(|member| member.worker == worker && !member.gone)
    }

    /// The rank that a worker has in this ring.
    pub fn member(&self, worker: WorkerId) -> Option<&Member> {
        self.members.iter().find(|member| member.worker == worker && !member.gone)
    }

    /// The rank that a worker has in this ring, to be changed.
    pub fn member_mut(&mut self, worker: WorkerId) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.worker == worker && !member.gone)
    }

    /// The members that are not gone, with their ranks.
    pub fn present(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.members.iter().enumerate().filter(|(_, member)| !member.gone)
    }

    /// Whether every rank is in a phase that `wanted` accepts.
    pub fn all(&self, wanted: impl Fn(Phase) -> bool) -> bool {
        self.present().all(|(_, member)| wanted(member.phase))
    }

    /// Whether it goes on where it loses a member: all of them can.
    pub fn reforms(&self) -> bool {
        self.started && !self.members.is_empty() && self.members.iter().all(|member| member.reforms)
    }

    /// Its epoch when it came from the queue.
    pub fn first_epoch(&self) -> Epoch {
        Epoch(self.epoch.0.saturating_sub(self.reformed))
    }

    /// The first of its epochs since which it has the rank 0 that it has now.
    pub fn led_from(&self) -> Epoch {
        Epoch(self.epoch.0.saturating_sub(self.led))
    }

    /// A worker that prepares to join.
    pub fn joiner(&self, worker: WorkerId) -> Option<&Joiner> {
        self.joining.iter().find(|joiner| joiner.member.worker == worker)
    }

    /// Everybody who has a place in it: members, then joiners.
    pub fn workers(&self) -> impl Iterator<Item = WorkerId> {
        let joiners = self.joining.iter().map(|joiner| &joiner.member);
        self.present().map(|(_, member)| member).chain(joiners).map(|member| member.worker)
    }

    fn forget_what_is_not_stored(&mut self) {
        (self.patience, self.returns_by, self.broken) = (Time::default(), Time::default(), None);
        (self.last_failure, self.paced) = (None, None);
        let joiners = self.joining.iter_mut().map(|joiner| &mut joiner.member);
        for member in self.members.iter_mut().chain(joiners) {
            (member.phase, member.last_step) = (Phase::default(), 0);
            member.pause = None;
        }
    }
}
