//! The largest values that are accepted; see [`crate::job::limits`] and [`crate::job::pictures::limits`].

/// Rows learned for the placeholder.
pub const NUM_VECTORS: i64 = 64;
/// Concepts in a job.
pub const CONCEPTS: usize = 64;
/// Rows learned for all concepts of a job together: every microbatch sends its gradient of them around the ring.
pub const ALL_VECTORS: u32 = 1024;
