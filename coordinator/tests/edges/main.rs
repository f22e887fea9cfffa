//! The coordinator where things meet or go wrong: slow watchers, sessions that are replaced or fall
//! silent, a store that is full, files of several jobs, the end of the process.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test reports by panicking")]

mod endings;
#[path = "../faulty_store/mod.rs"]
mod faulty_store;
mod files;
#[path = "../../../tests/coordinator/samples.rs"]
mod samples;
mod sessions;
mod storage;
mod support;
mod watching;
