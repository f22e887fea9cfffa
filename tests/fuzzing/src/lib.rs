//! Throws broken input at whatever reads from elsewhere: no panic, no crash, bounded memory and time. For tests alone.
//!
//! Each test does so for a few seconds. For longer, one path at a time:
//! `RINGTUNE_FUZZ_SECONDS=600 cargo test --release --workspace --test fuzz -- --nocapture image`.
//! `RINGTUNE_FUZZ_SEED=N` takes other inputs than the time of day would. The input that a path is working on lies in
//! `target/tmp/fuzz-PATH.input`, so that one that brings down the whole process can be looked at.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where something is missing")]

mod harness;
pub mod memory;
mod mutate;

pub use harness::{Path, as_it_is, seconds, words};
pub use mutate::Random;
