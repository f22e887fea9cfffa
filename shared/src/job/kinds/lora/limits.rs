//! The largest values that are accepted; see [`crate::job::limits`].

/// Ranks: wider than most layers of a small model.
pub const RANK: i64 = 1024;
/// Of a product's factor.
pub const ALPHA: f64 = 1e6;
/// Ends of layers' names.
pub const TARGETS: usize = 64;
