//! The gRPC services: parse, send a command, await the answer.

pub mod pages;
pub mod status;
pub mod to_wire;
