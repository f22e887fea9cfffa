//! Throws broken input at everything that reads files from elsewhere: no panic, no crash, bounded memory and time.
//!
//! The crate ringtune-fuzzing (tests/fuzzing) says how they are run for longer.
//! Weights are read by another crate: worker/model/tests/fuzz.rs has their test.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where something is missing")]

mod archive;
mod paths;
