//! The Ringtune coordinator: keeps jobs, hands out ranks, serves the API.
pub mod core;

// Written by the lead, beside the others: content-addressed files (uploads, ranges, garbage). Synchronous:
// the ArtifactService handlers call it through spawn_blocking.
pub mod contents;
