//! Training of any kind: step after step, each validated, shown and kept as the job wants it. What is trained, and how, is
//! a [`Trainee`]; what stands here knows none.
//!
//! # Invariants
//!
//! - `TrainState` and the step number are all that the rest of a job depends on.
//! - A state that is lent (`RankState::is_lent`) is read between two steps only. Whoever needs longer holds it
//!   (`RankState::hold`), as checkpoints and recovery points do (`writing.rs`): the next step's passes are computed
//!   meanwhile, and its update waits. The engine refuses to change what is held (`HeldState`).
//! - A trainee that changes its state in place (`Trainee::IN_PLACE`) settles a step before anything is evaluated after
//!   it, and takes an update that has begun to its end (`recover`). A validation's outcome is in the state of the next
//!   step.

mod checkpoints;
mod files;
mod history;
mod judging;
mod ordered;
mod previews;
mod recovery;
mod reports;
mod resume;
mod settled;
mod steps;
mod together;
mod trainee;
mod writing;

pub(crate) use files::{deciding_job, say_orders};
pub(crate) use judging::{measure, step_summary};
pub(crate) use previews::{Expanded, PreviewPlan, WantedPreviews};
pub(crate) use resume::{Start, fetch, read, unreadable};
pub(crate) use steps::Training;
pub(crate) use trainee::{
    Collect, Course, Named, Origin, Previews, Recovered, Sampled, Shown, StateTogether, StepJudged, Trainee,
    Wish,
};
