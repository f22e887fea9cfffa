//! Whole workers in this process, over real gRPC, with a coordinator that does what the test says.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

mod cluster;
mod coordinator;
mod downloads;
mod failures;
mod files;
mod gate;
mod history;
mod jobs;
mod language_checkpoints;
mod language_models;
mod language_refusals;
mod language_rings;
mod language_sharding;
mod latents;
mod lora;
mod re_forming;
mod recorded;
mod rings;
mod secured;
mod services;
mod sessions;
mod support;
mod worker;
