//! The decisions: jobs, workers and rings as pure functions of `(state, input, now)`.
//!
//! Invariant: nothing here does I/O, reads a clock or draws a random number. Ids and times
//! come in with the input; what is to be done comes out as [`Effects`], writes first.

mod cluster;
mod course;
mod deadlines;
mod effect;
mod failure;
mod fault;
mod input;
mod job;
mod job_state;
mod links;
mod loss;
mod pin;
mod pool;
mod queue;
mod queue_walk;
mod quota;
mod reason;
mod record;
mod reform;
mod refusal;
pub mod scheduler;
mod session;
mod stop;
mod time;
mod timing;
mod turn;
mod verification;
mod waiting;
mod worker;

// Copies share what they have in common, so that a copy of the state costs a few counted references and a change of one
// entry copies the nodes above it.
use rpds::{RedBlackTreeMapSync as SharedMap, RedBlackTreeSetSync as SharedSet};

pub use cluster::{Cluster, Options, Recovered};
pub use effect::{Action, Assignment, Down, Effects, EnterRing, LookAtLinks, OtherEpoch, Reformed, Write};
pub use failure::Failure;
pub use fault::Fault;
pub use input::{HeldRank, Hello, Input, NewJob, NewVerification, RankReport};
pub use job::{
    Broken, BrokenLink, Job, Joiner, Member, Pause, Phase, Reforming, RequestKey, Ring, Trouble, TroubleKind,
};
pub use job_state::JobState;
pub use links::{Apart, Links, Look, Sight};
pub use pin::Pin;
pub use quota::{OverQuota, OwnerLimits, Scarce, Usage};
pub use reason::ReasonCode;
pub use record::{
    AnyFloat, ArtifactRecord, Checkpoint, EventBody, EventKind, JobEvent, LogLevel, Progress, ProgressStage,
    StepRecord, Traffic,
};
pub use refusal::{REQUEST_OWNER, Refusal};
pub use session::{Sender, SessionId};
pub use stop::{Goal, Stop};
pub use time::Time;
pub use timing::{RankTiming, Straggler, Stragglers};
pub use verification::{Difference, Verification};
pub use waiting::{BEHIND_ANOTHER, Waiting};
pub use worker::{Capabilities, Doubt, RingPlace, Worker, WorkerState};
