//! The Ringtune coordinator: keeps jobs, hands out ranks, serves the API.
pub mod core;
pub mod store;

// Written by the lead, beside the others: content-addressed files (uploads, ranges, garbage). Synchronous:
// the ArtifactService handlers call it through spawn_blocking.
pub mod contents;

// Written by the lead, beside the others: Prometheus metrics with the tower layer that counts RPCs, and the
// HTTP port (axum). Wire `http::serve` and `metrics::Layer` where the servers are built.
pub mod http;
pub mod metrics;

// Written by the lead, beside the others.
pub mod arguments;
pub mod settings;
