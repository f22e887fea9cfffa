//! The worker's side of its session with the coordinator: a pure state machine ([`state`]) and a thin loop
//! around it ([`run`]), which dials for ever.

mod link;
mod looking;
mod orders;
mod service;
pub mod state;
mod status_line;
pub mod types;
mod wire;
mod words;

pub use link::LinkOptions;
pub use orders::{EndOrder, RankControl, RankOrders};
pub(crate) use orders::{dropped, ended, replaced, stored};
pub use service::{RankLauncher, SessionOptions, run};
pub use types::{
    Assignment, Level, NextRing, Phase, Progress, ProgressStage, RankEvent, RankKey, StepSummary, Timings,
};
