//! Training of any kind: step after step, each validated, shown and kept as the job wants it. What is trained, and how, is
//! a [`Trainee`]; what stands here knows none.

mod checkpoints;
mod files;
mod history;
mod recovery;
mod resume;
mod steps;
mod trainee;

pub(crate) use resume::{Resumed, class_and_threads, fetch, numerics};
pub(crate) use steps::Training;
pub(crate) use trainee::{Course, Origin, Previews, Shown, StepJudged, Trainee, Validation};
