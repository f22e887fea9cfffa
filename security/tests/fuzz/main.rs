//! Throws broken tokens, certificates and requests at their readers, and broken certificates at both sides of real
//! handshakes. The crate ringtune-fuzzing (tests/fuzzing) says how they are run for longer.

#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod der;
mod files;
mod handshakes;
mod tokens;

/// Resident memory that no input may take more of than this.
const MOST_BYTES: u64 = 64 << 20;
/// Where the input is kept that is being tried.
const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");
