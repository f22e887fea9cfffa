//! The words of a session, in the domain's own types.

use std::fmt;

use ringtune_shared::{
    ids::{ContentHash, Epoch, JobId},
    job::{JobSpec, LiveOrder},
    ring::RingView,
    trace::TraceContext,
    version::{RING_PROTOCOLS, VERSION},
};

use crate::{
    engine::Precision,
    fault::Fault,
    ring::{Traffic, Trouble},
};

/// Names one rank's work on this worker: a job, in one membership of its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankKey {
    /// The job.
    pub job: JobId,
    /// The ring's epoch.
    pub epoch: Epoch,
}

impl fmt::Display for RankKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "job {} epoch {}", self.job, self.epoch)
    }
}

/// A rank to take: what the coordinator decided for all of them, and which of them this is.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// The members in rank order.
    pub ring: RingView,
    /// This worker's place among them. None: the job runs on this ring without it; it prepares, and joins a later one.
    pub rank: Option<usize>,
    /// The job, with every default filled in.
    pub spec: JobSpec,
    /// Compute threads of every rank; at least 1.
    pub threads: usize,
    /// Precision of every rank.
    pub precision: Precision,
    /// The class that all members have.
    pub numerics_class: String,
    /// Version of RingService's protocol in this ring, which this build speaks.
    pub ring_protocol: u32,
    /// Version written into files: the same for all ranks, whatever their own versions.
    pub version: String,
    /// The newest checkpoint of the job itself, an artifact:// URI that takes the place of the spec's. Empty: the spec's.
    pub resume_from: String,
    /// The steps were done before, and are only computed again, up to this one. No file is made.
    pub proof: Option<u64>,
    /// The coordinator can give a running job another ring: one that breaks is waited for.
    pub re_forms: bool,
    /// The call that made the job. None: it is not traced.
    pub trace: Option<TraceContext>,
    /// What was ordered of the job; `spec` has what is settled of it and decides bits.
    pub orders: Vec<LiveOrder>,
}

impl Assignment {
    /// A rank as this build would take it, with one thread: nothing went before it, and nobody verifies or traces it.
    pub(crate) fn new(ring: RingView, rank: usize, spec: JobSpec) -> Self {
        Self {
            ring,
            rank: Some(rank),
            spec,
            threads: 1,
            precision: Precision::Fp32,
            numerics_class: String::new(),
            ring_protocol: RING_PROTOCOLS.max,
            version: VERSION.to_owned(),
            resume_from: String::new(),
            proof: None,
            re_forms: false,
            trace: None,
            orders: Vec::new(),
        }
    }

    /// The job and the epoch.
    pub fn key(&self) -> RankKey {
        RankKey { job: self.ring.job, epoch: self.ring.epoch }
    }

    /// The rank that reports the steps and writes the files.
    pub fn is_first(&self) -> bool {
        self.rank == Some(0)
    }
}

/// The ring that a job goes on in.
#[derive(Clone, Debug, PartialEq)]
pub struct NextRing {
    /// The members in rank order.
    pub view: RingView,
    /// This worker's place among them. None: it has none any more.
    pub rank: Option<usize>,
    /// Version of RingService's protocol in this ring, which this build speaks.
    pub protocol: u32,
    /// The ring before it is whole: the step is taken to its end there.
    pub after_step: bool,
    /// The reason, for people.
    pub reason: String,
    /// All that was ordered of the job up to this ring.
    pub orders: Vec<LiveOrder>,
}

impl NextRing {
    /// The job and the new epoch.
    pub fn key(&self) -> RankKey {
        RankKey { job: self.view.job, epoch: self.view.epoch }
    }
}

/// A rank's phase. Preparing -> Ready -> Training -> Finished; Failed and Stopped from any that is not final. From
/// Training also to Waiting, and from there by way of Ready to Training in the next ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Fetches, loads and encodes.
    Preparing,
    /// Waits for the others.
    Ready,
    /// Trains.
    Training,
    /// Its ring broke, or it has left it: it keeps its state and waits for the next one.
    Waiting,
    /// All steps are done: it keeps its state until the job's files are at the coordinator.
    Done,
    /// Done, its artifacts are at the coordinator.
    Finished,
    /// Ended with a reason.
    Failed,
    /// Ended on request.
    Stopped,
}

impl Phase {
    /// Nothing runs any more; the rank is held only so that the coordinator hears of it.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Stopped)
    }
}

/// A rank's current activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressStage {
    /// Fetches training images from the coordinator.
    Fetch,
    /// Fetches the model from a model hub or a bucket; in bytes.
    Download,
    /// Loads the model.
    Load,
    /// Encodes training images.
    Encode,
    /// Draws the pictures of a job of kind "generate".
    Draw,
    /// Makes the texts of a job of kind "generate_text".
    Write,
}

/// A part of preparation, or the drawing, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub stage: ProgressStage,
    /// Of `total`.
    pub done: u64,
    /// Images, bytes of a download, or 1.
    pub total: u64,
}

/// One finished step, as the coordinator stores it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepSummary {
    /// From 1.
    pub step: u64,
    /// Mean over the global batch.
    pub loss: f32,
    /// The step's.
    pub learning_rate: f64,
    /// From the step's beginning to its end, the encoding of pictures that it is the first to show included.
    pub step_seconds: f64,
    /// Of it, in the engine.
    pub compute_seconds: f64,
    /// Of it, sending and receiving that no computation hid.
    pub exchange_seconds: f64,
    /// Of it, waiting for slower ranks.
    pub wait_seconds: f64,
    /// Its traffic.
    pub traffic: Traffic,
    /// Left out, because a number was not finite.
    pub skipped: bool,
    /// Ranks in the ring.
    pub world_size: usize,
    /// Loss on the held-out draws after the step, where it was taken.
    pub validation_loss: Option<f32>,
    /// Taking it, apart from the step.
    pub validation_seconds: f64,
    /// Drawing pictures, apart from the step.
    pub preview_seconds: f64,
    /// The ring's epoch in which it was taken.
    pub epoch: Epoch,
    /// Of the state after it.
    pub state: Option<ContentHash>,
}

/// Recent durations of a rank's steps, each the mean of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timings {
    /// The last step that is in them.
    pub step: u64,
    /// Seconds in the engine.
    pub compute_seconds: f64,
    /// Seconds of sending and receiving that no computation hid.
    pub exchange_seconds: f64,
    /// Seconds of waiting for other ranks.
    pub wait_seconds: f64,
    /// Its traffic.
    pub traffic: Traffic,
}

/// Level of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Worth knowing.
    Info,
    /// Worth a look.
    Warn,
    /// Why it ended.
    Error,
}

impl Level {
    /// The word in job.log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// Events of a rank's work, in order. The last four end it.
#[derive(Clone, Debug, PartialEq)]
pub enum RankEvent {
    /// Preparation goes on.
    Progress(Progress),
    /// Prepared: waits to be told to train.
    Ready,
    /// Goes on in this ring, all ranks of which are at this step.
    Entered {
        /// The ring's.
        epoch: Epoch,
        /// The last one done.
        step: u64,
    },
    /// Has no ring any more, and waits for the next one.
    Waiting {
        /// Of the ring that it had.
        epoch: Epoch,
        /// The last one done.
        step: u64,
        /// The trouble that broke the ring. None: all ranks left it after this step.
        trouble: Option<Trouble>,
    },
    /// All steps are done in this ring; rank 0 writes the files.
    Done {
        /// The ring's.
        epoch: Epoch,
    },
    /// A step is done. Rank 0's are stored at the coordinator.
    Step(StepSummary),
    /// Steps up to this one are safe at the coordinator: rank 0 told the others.
    Stored(u64),
    /// A line for the job's history.
    Log(Level, String),
    /// Done and uploaded.
    Finished,
    /// Ended, with the reason.
    Failed {
        /// For the user.
        reason: String,
        /// For the coordinator.
        fault: Fault,
    },
    /// Ended, and all that can be said is that a neighbour was lost: another rank may know why.
    NeighbourLost(String),
    /// Ended as asked.
    Stopped,
}

impl RankEvent {
    /// Nothing comes after it.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished | Self::Failed { .. } | Self::NeighbourLost(_) | Self::Stopped)
    }
}

#[cfg(test)]
impl StepSummary {
    /// Of a step that took no time.
    pub(crate) fn example(step: u64) -> Self {
        Self { step, loss: 0.5, learning_rate: 1e-3, world_size: 1, ..Self::default() }
    }
}
