//! Suites that every implementation of a trait of `ringtune-shared` must pass, for the tests of whoever has one.
//!
//! Invariant: a dev-dependency alone. No program contains it.

pub mod ring;
