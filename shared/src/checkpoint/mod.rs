//! Checkpoints: everything that decides the rest of a job, as a file.
//!
//! A checkpoint is the encoding of a [state](crate::state). Its metadata has one entry, [`ENTRY`]: JSON that says which job
//! it belongs to and how far that was, and what hash the tensors have. Worker, coordinator and command line all read this
//! header, and all of them check it; the tensors, which may be larger than memory, only those who need them.
//!
//! Invariant: draws and the learning rate are functions of the seed and the step, so that a state and a step are all
//! that there is to keep.
//!
//! A job may resume from a checkpoint. The command, CreateJob and every rank ask one pure function whether the
//! checkpoint belongs to the job: all options that decide a bit must be the same, and an option counts as deciding
//! unless it is listed as not. The coordinator reads nothing but the header, and prefers workers of the checkpoint's
//! numerics class for the first ring; the ranks compare the hashes of model and pictures.

mod compare;
mod file;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::{
    checkpoint_names::{file_name, is_recovery_name, recovery_name, step_of_name, step_of_recovery_name},
    job::{NotAResume, ResumeFrom},
};
pub use compare::{Difference, deciding_options};
pub use file::{
    CheckpointError, CheckpointHeader, ENTRY, Filled, LARGEST_FILE, OpenCheckpoint, fill, metadata, open,
    write,
};

/// The layout that this version writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// The job that a checkpoint belongs to, and its step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Steps done.
    pub step: u64,
    /// The version of Ringtune that wrote it.
    pub version: String,
    /// Hash of the base model's files.
    pub model_hash: String,
    /// Hash of the pictures.
    pub data_hash: String,
    /// The other options that decide the bits: see [`deciding_options`].
    pub options: BTreeMap<String, Value>,
    /// On what the last steps were computed.
    pub numerics: Numerics,
    /// What the job's files say of the numerics of all steps so far: more than one class where it was resumed on
    /// another one.
    pub provenance: String,
}

/// On what a step was computed. Where two of these are equal, so are the bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numerics {
    /// The workers' class.
    pub class: String,
    /// Compute threads of each rank.
    pub threads_per_rank: u32,
    /// "bf16" or "no".
    pub precision: String,
}

/// Needed to place a job that resumes from a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// Steps done: the job's first one is the next.
    pub step: u64,
    /// On what they were computed.
    pub numerics: Numerics,
}
