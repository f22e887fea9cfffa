//! Throws broken input at everything that reads files from elsewhere: no panic, no crash, bounded memory and time.
//!
//! Each test does so for a few seconds. For longer, one path at a time:
//! `RINGTUNE_FUZZ_SECONDS=600 cargo test --release --workspace --test fuzz -- --nocapture images`.
//! `RINGTUNE_FUZZ_SEED=N` takes other inputs than the time of day would. The input that a path is working on lies in
//! `target/tmp/fuzz-PATH.input`, so that one that brings down the whole process can be looked at.
//! Weights are read by another crate: worker/model/tests/fuzz.rs has their test.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where something is missing")]

mod archive;
mod harness;
mod memory;
mod mutate;
mod paths;
