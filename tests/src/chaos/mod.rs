//! Faults, and what may not come of them: whatever is killed, stopped, cut, flipped or filled while a job runs, the job
//! ends with the bytes of a run without faults, and nothing hangs.
//!
//! A [`Row`] of the fault matrix is data: a job, the ground that it runs on, and a script of moments and faults. [`run`]
//! plays it, holds what came out against the run without faults, and gives what was measured. Everything random comes
//! from the seed that it prints.

pub mod build;
pub mod clean;
pub mod measure;
pub mod modes;
pub mod network;
pub mod node;
mod play;
pub mod proxy;
pub mod random;
pub mod results;
pub mod row;
pub mod rows;
mod runner;
pub mod sight;
pub mod stage;
pub mod story;
mod verdict;

pub use measure::Measured;
pub use row::{Act, Ground, Learns, Row, Who};
pub use runner::{Outcome, run, seed};

/// Says something to whoever reads stderr.
pub fn say(text: &str) {
    use std::io::Write as _;
    // stderr may be closed.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
