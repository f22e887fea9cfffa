//! The largest values that are accepted; see [`crate::job::limits`].

/// Parts of parameters' names.
pub const PATTERNS: usize = 64;
