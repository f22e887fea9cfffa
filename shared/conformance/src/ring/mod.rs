//! The suite that every transport must pass, and the ring over it.
//!
//! [`run_all`] is run over the in-memory transport here, on a clock that stands still, and over
//! real sockets by whoever has them, with short deadlines in [`SuiteConfig::ring`].

mod any;
mod cases;
mod faults;
mod harness;
#[cfg(test)]
mod lease_tests;
pub mod memory;
mod reference;
pub mod schedule;
mod spread;
#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;
use ringtune_shared::ids::{Epoch, JobId};
use ringtune_shared::ring::RingConfig;

pub use any::{AnyReceiveHalf, AnySendHalf, AnyTransport};
pub use faults::{Fault, Faulty, Graveyard};

/// Makes the transports of whole rings.
#[async_trait]
pub trait TransportFactory: Send + Sync {
    /// A connected ring, in the order of the ranks. `world_size` is at least 2.
    async fn connect(&self, ring: NewRing) -> Result<Vec<AnyTransport>, Failure>;
}

/// A ring to be connected.
#[derive(Debug, Clone, Copy)]
pub struct NewRing {
    /// The job whose ring it is.
    pub job: JobId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its ranks.
    pub world_size: usize,
}

/// What the suite goes through.
#[derive(Debug, Clone)]
pub struct SuiteConfig {
    /// Sizes of rings.
    pub world_sizes: Vec<usize>,
    /// Numbers in a buffer.
    pub sizes: Vec<usize>,
    /// Numbers in a segment.
    pub segments: Vec<usize>,
    /// Combinations of more frames than this in one message are left out.
    pub most_segments: usize,
    /// Deadlines and queues. `segment_floats` is replaced by each of `segments`.
    pub ring: RingConfig,
    /// What a case may take besides the ring's own deadlines.
    pub slack: Duration,
}

impl Default for SuiteConfig {
    fn default() -> Self {
        Self {
            world_sizes: vec![1, 2, 3, 4, 7],
            sizes: vec![0, 1, 2, 3, 5, 250, 30_011],
            segments: vec![1, 3, 2048, 16_384],
            most_segments: 300,
            ring: RingConfig::default(),
            slack: Duration::from_secs(60),
        }
    }
}

/// A case that did not go as it must.
#[derive(Debug, thiserror::Error)]
#[error("{case}: {problem}")]
pub struct Failure {
    /// Which case, with its sizes.
    pub case: String,
    /// What happened instead.
    pub problem: String,
}

impl Failure {
    /// A failed case.
    pub fn new(case: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { case: case.into(), problem: problem.into() }
    }
}

/// Runs the whole suite; stops at the first failure. Cases that wait for a lease to end wait side by side, as few of them as keeps
/// a busy machine from missing pulses.
pub async fn run_all(factory: &dyn TransportFactory, config: &SuiteConfig) -> Result<(), Failure> {
    let suite = harness::Suite { factory, config };
    cases::results_are_right_to_the_bit(suite).await?;
    tokio::try_join!(
        cases::a_slow_rank_that_pulses_is_waited_for(suite),
        cases::a_rank_that_dies_is_noticed(suite),
        cases::a_rank_that_stalls_is_noticed(suite),
        cases::an_older_epoch_is_refused(suite),
        cases::what_does_not_belong_is_refused(suite),
        cases::buffers_of_different_lengths_are_refused(suite),
        cases::what_is_damaged_is_refused(suite),
        cases::a_rank_that_leaves_early_is_missed(suite),
        cases::a_rank_that_is_cancelled_ends_the_ring(suite),
    )?;
    Ok(())
}
