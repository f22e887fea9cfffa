//! A step on its way: what a rank has of it before anything changes.

use std::time::Instant;

use crate::{
    engine::{AlignedFloats, EmbeddingRows, OptimizerStep},
    ring::StepExchange,
    session::StepSummary,
};

/// What a rank has of a step before its update.
#[derive(Debug)]
pub(super) struct Computed {
    pub(super) looked_up: EmbeddingRows,
    /// The plan's, and that of what is looked up.
    pub(super) buckets: Vec<AlignedFloats>,
    /// Of each microbatch: its loss, and the seconds that it took.
    pub(super) rows: Vec<Vec<f32>>,
    pub(super) compute_seconds: f64,
    /// When the last backward pass ended: what of the exchange comes later it did not hide.
    pub(super) computed: Instant,
}

/// A microbatch that is computed, and its gradient on the way to the sums.
#[derive(Debug)]
pub(super) struct Passed {
    pub(super) loss: f32,
    pub(super) seconds: f64,
    /// When its last backward pass ended.
    pub(super) ended: Instant,
}

/// A step of which everything is computed.
#[derive(Debug)]
pub(super) struct StepBegun {
    pub(super) optimizer: OptimizerStep,
    /// But for its update.
    pub(super) summary: StepSummary,
    pub(super) began: Instant,
}

/// What a step exchanged besides its gradients, which nothing hid.
pub(super) fn also_exchanged(summary: &mut StepSummary, seen: StepExchange) {
    summary.exchange_seconds += seen.exchange_seconds;
    summary.wait_seconds += seen.wait_seconds;
    summary.traffic += seen.traffic;
}
