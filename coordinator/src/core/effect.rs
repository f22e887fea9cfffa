//! What the core decides: first what is to be stored, then what is to be done.

use std::sync::Arc;

use ringtune_shared::ids::{ContentHash, Epoch, JobId, WorkerId};
use ringtune_shared::job::{JobSpec, LiveOrder, MixedPrecision};
use ringtune_shared::trace::TraceContext;
use ringtune_shared::version::Agreement;

use super::job::Job;
use super::record::{ArtifactRecord, JobEvent, Progress, StepRecord, Validation};
use super::session::SessionId;
use super::shares::Account;
use super::time::Time;
use super::timing::RankTiming;

/// The outcome of one input. No action may be taken before all writes are safe.
#[derive(Debug, Default)]
pub struct Effects {
    /// To be stored, in this order, all or nothing.
    pub writes: Vec<Write>,
    /// To be done once that is safe.
    pub actions: Vec<Action>,
    /// How far ranks are now. Never stored: the newest word of each rank is all that anybody wants.
    pub progress: Vec<(JobId, Progress)>,
    /// What a rank's steps take now, and how many ranks its ring has. Never stored either.
    pub timings: Vec<(JobId, usize, RankTiming)>,
    /// Rings that did their first step after their members changed.
    pub reformed: Vec<Reformed>,
    /// The input came from another epoch than that of its job's ring: it was skipped.
    pub other_epoch: Option<OtherEpoch>,
    /// The job that a request was about.
    pub about: Option<JobId>,
    /// That job as it is after this input, unless it ended before.
    pub job: Option<Arc<Job>>,
}

/// A ring is whole again after its members changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reformed {
    /// Nobody was lost.
    pub planned: bool,
    /// From the first word of it to the first step.
    pub milliseconds: i64,
}

/// What a rank of another epoch than that of its job's ring said or sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherEpoch {
    /// How far it is.
    Report,
    /// A step.
    Step,
    /// A line for the log.
    Log,
    /// What its steps take.
    Timings,
    /// A file.
    Upload,
    /// That a file is wanted no more.
    Deletion,
}

impl OtherEpoch {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Report, Self::Step, Self::Log, Self::Timings, Self::Upload, Self::Deletion];

    /// A label of a metric.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Step => "step",
            Self::Log => "log",
            Self::Timings => "timings",
            Self::Upload => "upload",
            Self::Deletion => "deletion",
        }
    }
}

/// A change of what is stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// A new job.
    InsertJob(Arc<Job>),
    /// A job's row, but for what never changes (spec, number, request, creation).
    UpdateJob(Arc<Job>),
    /// Those numbers of a job that change all the time, where nothing else of it did.
    UpdateProgress {
        /// The job.
        job: JobId,
        /// Steps done.
        step: u64,
        /// The loss of the last step.
        loss: Option<f64>,
        /// The validation loss of its result so far.
        validation: Option<Validation>,
        /// The sequence number of the newest event.
        last_sequence: u64,
        /// Files kept so far.
        artifacts: u64,
        /// When the job last changed.
        updated: Time,
    },
    /// The next event of a job.
    AppendEvent(JobEvent),
    /// The next step of a job.
    AppendStep(JobId, StepRecord),
    /// A file of a job; one of the same name is replaced.
    PutArtifact(ArtifactRecord),
    /// A job has the file of this name no more.
    DropArtifact(JobId, String),
    /// A worker is drained, or no longer.
    SetDraining(WorkerId, bool),
    /// What an owner has used; none: it is forgotten.
    SetAccount(String, Option<Account>),
}

impl Write {
    /// Those numbers of a job that change all the time, as they are now.
    pub fn progress_of(job: &Job) -> Self {
        Self::UpdateProgress {
            job: job.id,
            step: job.step,
            loss: job.loss,
            validation: job.validation,
            last_sequence: job.last_sequence,
            artifacts: job.artifacts,
            updated: job.updated,
        }
    }
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Say something to a worker. If it cannot be said, the session ends.
    Send(SessionId, Down),
    /// End a session; the text says why.
    Close(SessionId, String),
}

/// What a worker is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Down {
    /// Its hello is accepted.
    Welcome(Agreement),
    /// Take a rank.
    Assignment(Box<Assignment>),
    /// Go on in another ring of the job that it holds.
    EnterRing(Box<EnterRing>),
    /// All ranks are ready.
    StartRank(JobId, Epoch),
    /// Let a rank go.
    StopRank {
        /// The job.
        job: JobId,
        /// The ring's epoch.
        epoch: Epoch,
        /// Why.
        reason: String,
        /// Rank 0 uploads what it has before it reports Stopped.
        keep_artifacts: bool,
    },
    /// Steps up to this one are stored.
    StepsStored(JobId, Epoch, u64),
    /// Say which of these workers it reaches.
    LookAtLinks(LookAtLinks),
}

/// A question: which workers are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookAtLinks {
    /// For which job.
    pub job: JobId,
    /// The number of the question.
    pub look: u64,
    /// Workers and their addresses.
    pub workers: Vec<(WorkerId, String)>,
}

/// A rank, and all that its worker must know of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The job.
    pub job: JobId,
    /// The ring's epoch.
    pub epoch: Epoch,
    /// The ring: workers and their addresses in rank order.
    pub members: Vec<(WorkerId, String)>,
    /// The place of the worker that is told; none: it prepares to join this ring, which runs without it.
    pub rank: Option<u32>,
    /// What is to be done.
    pub spec: Arc<JobSpec>,
    /// Compute threads of each rank.
    pub threads_per_rank: u32,
    /// What the ranks compute in.
    pub precision: MixedPrecision,
    /// Of all members.
    pub numerics_class: String,
    /// What files say they were made with.
    pub version: String,
    /// What the members say to each other: the newest protocol that all of them speak.
    pub protocol: u32,
    /// The job's newest checkpoint, which takes the place of the spec's.
    pub resume_from: Option<ContentHash>,
    /// The steps were done before, and are only computed again, up to this one.
    pub proof: Option<u64>,
    /// The call that made the job, if that is traced.
    pub trace: Option<TraceContext>,
    /// What was ordered of the job up to this ring.
    pub orders: Vec<LiveOrder>,
}

/// The ring of a job has new members.
#[derive(Debug, Clone, PartialEq)]
pub struct EnterRing {
    /// The job.
    pub job: JobId,
    /// The new ring's epoch.
    pub epoch: Epoch,
    /// The new ring: workers and their addresses in rank order.
    pub members: Vec<(WorkerId, String)>,
    /// What the members say to each other.
    pub protocol: u32,
    /// The place of the worker that is told; none: it has none any more.
    pub rank: Option<u32>,
    /// The old ring is whole: the step is taken to its end there.
    pub after_step: bool,
    /// What happened.
    pub reason: String,
    /// What was ordered of the job up to this ring.
    pub orders: Vec<LiveOrder>,
}
