//! What a job's rings have in common.

use ringtune_shared::job::MixedPrecision;
use serde::{Deserialize, Serialize};

/// All that must be equal for equal bits. It is decided with the first ring of a job and does not change once a ring of it
/// has started: whichever ring makes a step, on whatever workers, the step is the same. A job that is queued again before
/// that has none, so that it does not wait for a class whose workers cannot even prepare it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// The one class of all members of all rings. Empty where release 0.1.0 ended the job, which did not keep it.
    pub numerics_class: String,
    /// Compute threads of each rank; 0 where the class is empty.
    pub threads_per_rank: u32,
    /// What the ranks compute in. A class has one instruction set, so that all its workers can do the same.
    pub precision: MixedPrecision,
    /// What the job's files say they were made with: the coordinator's version then. Empty where release 0.1.0 decided.
    pub version: String,
}
