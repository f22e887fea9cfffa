//! Real sockets: servers and clients of this crate, and others that do everything wrong.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test reports by panicking")]

mod bounds;
mod common;
mod following;
mod joining;
mod local;
mod pages;
mod plaintext;
mod refused_clients;
mod refused_servers;
mod right;
