//! A whole coordinator, as its clients and workers meet it: over gRPC, on a state folder of its own.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test reports by panicking")]

mod coordinator;
mod damage;
mod floods;
mod folder;
mod jobs;
mod limits;
mod lists;
mod lives;
mod losses;
mod network;
mod orders;
mod queue;
mod recorded;
mod requests;
mod restarts;
mod rings;
#[path = "../samples.rs"]
mod samples;
mod surface;
mod sweeps;
mod tls;
mod uploads;
mod verify;
mod versions;
mod watches;
mod web;
mod worker;

use std::time::Duration;

/// Nothing here takes nearly so long; what does is stuck.
const STUCK: Duration = Duration::from_secs(30);

/// Bounds a wait.
async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(STUCK, wait).await.unwrap_or_else(|_| panic!("still waiting for {what}"))
}
