//! What every part of Ringtune shares: ids, the job spec, settings, the ring and its
//! all-reduce over a [`ring::Transport`] and file helpers.
//!
//! Invariant: nothing here knows gRPC or libtorch.

#![deny(clippy::disallowed_types)]

pub mod captions;
pub mod checkpoint;
mod checkpoint_names;
pub mod checksum;
pub mod condition;
pub mod config;
pub mod daemon;
pub mod documents;
pub mod embedding;
pub mod files;
pub mod floats;
pub mod ids;
pub mod job;
pub mod lora;
pub mod manifest;
pub mod model_folder;
pub mod names;
pub mod ring;
pub mod state;
pub mod suggest;
pub mod tasks;
pub mod templates;
pub mod trace;
pub mod user_info;
pub mod version;
