//! Training of any kind: step after step, each validated, shown and kept as the job wants it. What is trained, and how, is
//! a [`Trainee`]; what stands here knows none.

mod checkpoints;
mod facts;
mod files;
mod history;
mod judging;
mod previews;
mod recovery;
mod reports;
mod resume;
mod settled;
mod state_together;
mod steps;
mod telling;
mod together;
mod trainee;
mod writing;

pub(crate) use facts::deciding_job;
pub(crate) use judging::{measure, step_summary};
pub(crate) use previews::{PreviewPlan, WantedPreviews};
pub(crate) use resume::{Start, fetch, read, unreadable};
pub(crate) use state_together::{Collect, StateTogether, Wish};
pub(crate) use steps::Training;
pub(crate) use trainee::{Course, Named, Origin, Previews, Recovered, Shown, StepJudged, Trainee};
