//! The decisions: jobs, workers and rings as pure functions of `(state, input, now)`.
//!
//! Invariant: nothing here does I/O, reads a clock or draws a random number. Ids and times
//! come in with the input; what is to be done comes out as [`Effects`], writes first.

mod cluster;
mod deadlines;
mod effect;
mod indexes;
mod input;
mod job;
mod loss;
mod pin;
mod pool;
mod queue;
mod reason;
mod record;
pub mod scheduler;
mod shared_map;
mod stop;
mod time;
mod turn;
mod waiting;
mod worker;

pub use cluster::{Cluster, Options, Recovered};
pub use effect::{Action, Assignment, Down, Effects, OtherEpoch, Refusal, Write};
pub use input::{Fault, HeldRank, Hello, Input, NewJob, RankReport, Sender, SessionId};
pub use job::{Broken, Job, JobState, Member, Phase, RequestKey, Ring};
pub use pin::Pin;
pub use reason::{Failure, ReasonCode};
pub use record::{
    AnyFloat, ArtifactRecord, Checkpoint, EventBody, EventKind, JobEvent, LogLevel, Progress, ProgressStage,
    StepRecord,
};
pub use stop::{Goal, Stop};
pub use time::Time;
pub use waiting::Waiting;
pub use worker::{Capabilities, Worker, WorkerState};
