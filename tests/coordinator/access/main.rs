//! Authorisation over TLS and gRPC: roles, tokens, owners.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

mod calls;
mod owners;
mod quotas;
mod roles;
#[path = "../samples.rs"]
mod samples;
mod stage;
mod tokens;
mod workers;

use std::time::Duration;

/// Nothing here takes nearly so long; what does is stuck.
const STUCK: Duration = Duration::from_secs(30);

/// Bounds a wait.
async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(STUCK, wait).await.unwrap_or_else(|_| panic!("still waiting for {what}"))
}
