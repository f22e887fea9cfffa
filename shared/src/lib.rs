//! Ringtune: shared.
