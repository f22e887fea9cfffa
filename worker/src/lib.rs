//! Ringtune's worker: dials a coordinator, takes ranks of jobs, computes them on an engine (on one thread, behind
//! the [`engine::WorkerEngine`] trait) and exchanges gradients with its ring neighbours over gRPC.
//!
//! It links no library that computes: a program hands one in ([`engine::Library`]).

#![deny(clippy::disallowed_types)]

pub mod access;
pub mod advertise;
pub mod arguments;
pub mod base_model;
pub mod bench;
mod bounded_folder;
pub mod callers;
pub mod capabilities;
pub mod check;
pub mod cloud;
pub mod contents;
pub mod coordinator;
pub mod daemon;
pub mod data;
pub mod doctor;
pub mod engine;
mod error_chain;
pub mod fault;
pub mod generate;
pub mod generate_text;
pub mod http;
pub mod inputs;
mod instructions;
mod journal;
pub mod kinds;
pub mod latents;
mod lora_layers;
pub mod membership;
pub mod node;
pub mod output;
mod parameters;
pub mod patience;
pub mod pipeline;
pub mod prepare_text;
mod probe;
pub mod program;
pub mod rank;
pub mod rank_state;
mod reconnect;
pub mod ring;
mod servers;
pub mod session;
pub mod settings;
pub mod state_folder;
mod status_text;
pub mod train;
mod training;
mod while_wanted;
