//! Real sockets: servers and clients of this crate, and others that do everything wrong.

mod bounds;
mod common;
mod following;
mod joining;
mod plaintext;
mod refused_clients;
mod refused_servers;
mod right;
