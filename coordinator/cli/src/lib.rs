//! Ringtune: cli.
