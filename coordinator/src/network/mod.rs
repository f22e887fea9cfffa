//! How the coordinator stands on the network: who signs certificates and whose are believed.

pub mod authority;
