//! The Ringtune coordinator: keeps jobs, hands out ranks, serves the API.

pub mod access;
pub mod arguments;
pub mod backup;
pub mod check;
pub mod contents;
pub mod core;
pub mod daemon;
mod disk;
pub mod grpc;
mod host_names;
pub mod http;
mod manager;
pub mod metrics;
pub mod network;
mod open_files;
pub mod opening;
mod orphan;
pub mod quotas;
mod references;
pub mod reload;
pub mod scrapes;
pub mod service;
pub mod settings;
pub mod state_folder;
pub mod store;

// Its path in tests/faulty_store, which integration tests share.
#[cfg(test)]
extern crate self as ringtune_coordinator;
#[cfg(test)]
#[path = "../tests/faulty_store/mod.rs"]
mod faulty_store;
