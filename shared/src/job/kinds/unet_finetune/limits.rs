//! The largest values that are accepted; see [`crate::job::limits`].

/// Parts of parameters' names.
pub const PATTERNS: usize = 64;
/// Steps that a replica takes by itself.
pub const LOCAL_STEPS: i64 = 10_000;
/// All of them, of all of a job's steps.
pub const ALL_LOCAL_STEPS: u64 = 10_000_000;
/// By which a round moves the parameters.
pub const OUTER_LEARNING_RATE: f64 = 10.0;
