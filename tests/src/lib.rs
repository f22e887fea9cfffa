//! Ringtune: tests.
