//! Ringtune: coordinator.
