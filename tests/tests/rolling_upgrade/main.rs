//! The last release's real programs beside this build's: `make upgrade-test`, which builds them first.
//!
//! With RINGTUNE_RECORD=1 `recording` writes down what they say to each other, for the replays of every test run.

mod commands;
mod recording;
mod replacing;
mod stage;
