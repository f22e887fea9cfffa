//! Ringtune's worker: dials a coordinator, takes ranks of jobs, computes them on libtorch
//! (on one thread, behind the [`engine::Engine`] trait) and exchanges gradients with its ring
//! neighbours over gRPC.

pub mod data;
pub mod engine;
pub mod output;
pub mod train;
