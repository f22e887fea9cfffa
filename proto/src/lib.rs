//! The gRPC API of Ringtune: generated types, the descriptor set that reflection serves,
//! and the conversions between wire and domain types.

pub mod convert;

/// Package `ringtune.v1`: messages, clients and servers as generated from `proto/`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
pub mod v1 {
    tonic::include_proto!("ringtune.v1");
}

/// The encoded `FileDescriptorSet` of package `ringtune.v1` and of all that it imports.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ringtune_descriptor.bin"));
