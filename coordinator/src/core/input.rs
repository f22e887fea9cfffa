//! What the core is told.

use std::sync::Arc;

use ringtune_shared::checkpoint::Resumed;
use ringtune_shared::ids::{ContentHash, Epoch, JobId, SweepId, WorkerId};
use ringtune_shared::job::{JobSpec, Order, QueueSpec};
use ringtune_shared::trace::TraceContext;
use ringtune_shared::version::Dialect;

use super::fault::Fault;
use super::job::{Phase, RequestKey, Trouble};
use super::links::Sight;
use super::pin::Pin;
use super::record::{ArtifactRecord, LogLevel, Progress, StepRecord};
use super::session::{Sender, SessionId};
use super::sweep_place::SweepPlace;
use super::timing::RankTiming;
use super::verification::Verification;
use super::worker::Capabilities;

/// Everything that can happen.
#[derive(Debug, Clone)]
pub enum Input {
    /// A user asks for a job.
    CreateJob(NewJob),
    /// A user asks for steps of a job to be computed again.
    VerifyJob(Box<NewVerification>),
    /// A user asks for several jobs at once.
    CreateSweep(Vec<NewJob>),
    /// A user wants all jobs of a sweep to stop.
    CancelSweep {
        /// The sweep.
        sweep: SweepId,
        /// As the user gave it; may be empty.
        reason: String,
    },
    /// A user wants a job to stop.
    CancelJob {
        /// The job.
        job: JobId,
        /// As the user gave it; may be empty.
        reason: String,
    },
    /// A user wants a job to hold no worker until it is resumed.
    PauseJob(JobId),
    /// A user orders something of a job that learns.
    OrderJob {
        /// The job.
        job: JobId,
        /// What.
        order: Order,
        /// Not before this step is done; 0: as soon as it may be.
        after_step: u64,
    },
    /// A user wants a paused job to go on.
    ResumeJob(JobId),
    /// A file is complete and belongs to a job.
    KeepArtifact {
        /// The file. One that a rank made is of the epoch of its ring.
        artifact: ArtifactRecord,
    },
    /// A file that a job has is wanted no more.
    DropArtifact {
        /// The job.
        job: JobId,
        /// Its name there.
        name: String,
        /// The epoch of the ring that wants it no more, where a rank says so.
        epoch: Option<Epoch>,
    },
    /// A user wants a worker to get no rank and to leave its ring, or to take ranks again.
    DrainWorker {
        /// The worker.
        worker: WorkerId,
        /// Whether it is drained from now on.
        draining: bool,
    },
    /// A worker opened a session.
    Hello {
        /// The new session.
        session: SessionId,
        /// What it says of itself.
        hello: Hello,
    },
    /// A session ended, from whichever side.
    SessionEnded(Sender),
    /// A worker's certificate was revoked.
    Evicted {
        /// The worker.
        worker: WorkerId,
        /// The session of that certificate; another one goes on. None: all certificates of the worker are revoked.
        session: Option<SessionId>,
    },
    /// A sign of life, with all ranks the worker holds.
    Heartbeat(Sender, Vec<HeldRank>),
    /// A rank went into another phase or made progress.
    RankReport(Sender, RankReport),
    /// Rank 0 did a step.
    RankStep(Sender, JobId, Epoch, StepRecord),
    /// Rank 0 of a verification did a step.
    StepAgain {
        /// Who.
        sender: Sender,
        /// The verification.
        job: JobId,
        /// In which epoch of its ring.
        epoch: Epoch,
        /// The step.
        step: StepRecord,
        /// The state after it, as it is stored with the job that is verified.
        stored: Option<ContentHash>,
    },
    /// What a rank's steps take. Of how many microbatches they are is decided here.
    RankTimings(Sender, JobId, RankTiming),
    /// A line for the job's log.
    RankLog {
        /// Who.
        sender: Sender,
        /// Of which job.
        job: JobId,
        /// In which epoch of its ring.
        epoch: Epoch,
        /// How important it is.
        level: LogLevel,
        /// The line.
        message: String,
    },
    /// A worker that was asked which others it reaches says so, or that it looks.
    LinksSeen {
        /// Who.
        sender: Sender,
        /// For which job it was asked.
        job: JobId,
        /// The number of the question.
        look: u64,
        /// The answer.
        sight: Sight,
    },
    /// Time went by.
    Tick,
}

/// A job that passed validation.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// A fresh id.
    pub id: JobId,
    /// Every default filled in.
    pub spec: Arc<JobSpec>,
    /// Whose it is, and how urgent.
    pub queue: Arc<QueueSpec>,
    /// The client's name for this request.
    pub request: Option<RequestKey>,
    /// What the checkpoint has that it goes on from, if it does.
    pub resumed: Option<Resumed>,
    /// The call that makes it, if that is traced.
    pub trace: Option<TraceContext>,
    /// Its place in its sweep, if it is of one.
    pub sweep: Option<SweepPlace>,
}

/// A verification that passed all checks.
#[derive(Debug, Clone)]
pub struct NewVerification {
    /// With the spec of the job that is verified, but for the checkpoint that it begins with.
    pub job: NewJob,
    /// What is verified.
    pub verification: Verification,
    /// Of the job that is verified.
    pub pin: Arc<Pin>,
}

/// A worker's first words.
#[derive(Debug, Clone)]
pub struct Hello {
    /// From its state folder.
    pub worker: WorkerId,
    /// Counts the starts of its daemon.
    pub incarnation: u64,
    /// For people.
    pub host_name: String,
    /// host:port of its RingService.
    pub address: String,
    /// What it can do.
    pub capabilities: Arc<Capabilities>,
    /// Ranks it holds.
    pub held: Vec<HeldRank>,
    /// What it can speak.
    pub dialect: Dialect,
}

/// A rank that a worker says it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldRank {
    /// The job.
    pub job: JobId,
    /// The ring's epoch.
    pub epoch: Epoch,
    /// The rank; none: it prepares to join the ring.
    pub rank: Option<u32>,
    /// How far it is.
    pub phase: Phase,
    /// Why it failed or stopped.
    pub reason: String,
    /// It failed only because a neighbour was lost: another rank may know why.
    pub neighbour_lost: bool,
    /// Whose fault it was that it failed.
    pub fault: Fault,
    /// The last step done.
    pub step: u64,
    /// What it saw of a neighbour, where it waits because its ring broke.
    pub trouble: Option<Trouble>,
    /// The worker is to end: the ring is to go on without it.
    pub leaving: bool,
}

impl HeldRank {
    /// One of which nothing was heard yet.
    pub fn of(job: JobId, epoch: Epoch, rank: Option<u32>) -> Self {
        Self {
            job,
            epoch,
            rank,
            phase: Phase::Assigned,
            reason: String::new(),
            neighbour_lost: false,
            fault: Fault::Unknown,
            step: 0,
            trouble: None,
            leaving: false,
        }
    }
}

/// News of one rank.
#[derive(Debug, Clone)]
pub struct RankReport {
    /// Which rank, and its phase now.
    pub held: HeldRank,
    /// How far it is within Preparing.
    pub progress: Option<Progress>,
}
