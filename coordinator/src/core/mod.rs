//! The decisions: jobs, workers and rings as pure functions of `(state, input, now)`.
//!
//! Invariant: nothing here does I/O, reads a clock or draws a random number. Ids and times
//! come in with the input; what is to be done comes out as [`Effects`], writes first.
//!
//! # The life of a job
//!
//! 1. **QUEUED.** `CreateJob` brings the spec with a request id, so that a retried call makes no second job.
//! 2. **PREPARING.** As soon as `min_world_size` workers of one numerics class are free, the coordinator forms a ring
//!    of up to `world_size` of them and sends each an assignment. The order of the queue is in `precedence.rs`: priority, then
//!    what each owner has used (`shares.rs`), then age. `queue_walk.rs` says which workers are reserved for a job that
//!    waits; one that is much more urgent than others gets ranks from their rings (`preemption.rs`). A running ring with room takes a free worker before one is
//!    reserved, unless the waiting job has enough workers as soon as other rings have let go of the ranks that they are
//!    leaving. Jobs of an owner whose last job failed to prepare come after all others for a while
//!    (`cluster/latecomers.rs`). With its first ring a job is pinned to numerics class, threads, precision and version
//!    (`pin.rs`): later rings take workers of that class only, and compute the same. A job that returns to the queue
//!    before a ring of it started is not pinned. A rank that fails here by a fault of its node, or whose worker is
//!    lost, sends the job back to the queue for another ring, twice at most; `fault.rs` has the table of what follows
//!    from whose fault.
//! 3. **RUNNING.** When all ranks of the epoch are ready, they are told to start. Each rank keeps what it has to report
//!    of a step until that is stored; rank 0 reports it, with the hash of the state after the step. A step that is
//!    stored already is compared by that hash, and a different one ends the job.
//! 4. **SUCCEEDED** once rank 0 has read its files back and uploaded them; until then the other ranks keep their state.
//!    **FAILED** if a rank fails by a fault of the job. **CANCELLED** keeps what the job has.
//!
//! What a user orders of a job that learns is carried out between two steps: the ring changes, be it to the same members, and
//! all ranks enter the next epoch after the same step (`orders.rs`).
//!
//! A job that leaves its ring before its end does so by a goal (`stop.rs`): the state that it gets once its ranks have
//! stopped or their time is over.
//!
//! Everything that happens to a job is an event with a sequence number in the store. The progress of a preparation is
//! no event: only the newest report of each rank is kept, in memory. When the coordinator dies, training goes on; the
//! workers reconnect and say which ranks they hold, and the coordinator goes on with the jobs of its store.
//!
//! # Invariants
//!
//! What is decided is stored before anybody is told. Only the rings say which worker has which rank; there is an index
//! of their members, and no second record.
//!
//! An input costs the same with thousands of jobs: the state is made of persistent maps whose copies are free, with
//! indexes and deadlines beside them.

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
mod needs;
mod orders;
mod pin;
mod pool;
mod precedence;
mod preemption;
mod queue;
mod queue_walk;
mod quota;
mod reason;
mod record;
mod reform;
mod refusal;
pub mod scheduler;
mod session;
mod shares;
mod stop;
mod sweep_place;
mod sweeps;
#[cfg(test)]
pub(crate) mod testing;
mod time;
mod timing;
mod topology;
mod turn;
mod verification;
mod waiting;
mod worker;

// Copies share what they have in common, so that a copy of the state costs a few counted references and a change of one
// entry copies the nodes above it.
use rpds::{RedBlackTreeMapSync as SharedMap, RedBlackTreeSetSync as SharedSet};

pub use cluster::{Cluster, Limits, Options, OwnerLoad, Recovered};
pub use effect::{Action, Assignment, Down, Effects, EnterRing, LookAtLinks, OtherEpoch, Reformed, Write};
pub use failure::Failure;
pub use fault::Fault;
pub use input::{HeldRank, Hello, Input, NewJob, NewVerification, RankReport};
pub use job::{
    Broken, BrokenLink, Job, Joiner, Member, Ordered, Pause, Phase, Reforming, RequestKey, Ring, Trouble,
    TroubleKind, Wait,
};
pub use job_state::JobState;
pub use links::{Apart, Links, Look, Sight};
pub use pin::Pin;
pub use quota::{OverQuota, OwnerLimits, Scarce, Usage};
pub use reason::ReasonCode;
pub use record::{
    AnyFloat, ArtifactRecord, Checkpoint, EventBody, EventKind, JobEvent, LogLevel, Progress, ProgressStage,
    StepRecord, Traffic, Validation,
};
pub use refusal::{REQUEST_OWNER, Refusal};
pub use session::{Sender, SessionId};
pub use shares::{Account, Fairness};
pub use stop::{Goal, Stop};
pub use sweep_place::SweepPlace;
pub use time::Time;
pub use timing::{RankTiming, Straggler, Stragglers};
pub use verification::{Difference, Verification};
pub use waiting::{BEHIND_ANOTHER, LongestWait, Outlook, Waiting};
pub use worker::{Capabilities, Doubt, RingPlace, Worker, WorkerState};
