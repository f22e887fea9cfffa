//! Whole workers in this process, over real gRPC, with a coordinator that does what the test says.

#![allow(missing_docs, unreachable_pub)]

mod coordinator;
mod failures;
mod jobs;
mod rings;
mod sessions;
mod torch;
mod worker;
