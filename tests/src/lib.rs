//! What the end-to-end tests share: real processes of the built programs, in a sandbox of their own.
//!
//! The programs are taken from the target folder that the tests themselves were built into: `cargo build
//! --release` comes first (`make test` does it).

pub mod aws;
pub mod bucket;
pub mod bystander;
pub mod capture;
pub mod chaos;
pub mod cluster;
pub mod daemon;
pub mod door;
pub mod files;
pub mod http2;
pub mod hub;
pub mod job;
pub mod language_model;
pub mod metadata;
pub mod places;
pub mod platforms;
pub mod process;
pub mod recorder;
pub mod reference;
pub mod released;
pub mod sandbox;
pub mod swarm;
pub mod tools;
pub mod unit_file;
pub mod visitor;
pub mod wait;

pub use bucket::Bucket;
pub use bystander::Bystander;
pub use cluster::Cluster;
pub use daemon::{Daemon, Launch};
pub use door::Door;
pub use job::Job;
pub use process::Finished;
pub use sandbox::Sandbox;
pub use visitor::Visitor;
