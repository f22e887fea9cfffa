//! Suites that every implementation of a trait of `ringtune-shared` must pass.
//!
//! Invariant: a dev-dependency alone. No program contains it.

pub mod ring;
