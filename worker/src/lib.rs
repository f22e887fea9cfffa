//! Ringtune: worker.
