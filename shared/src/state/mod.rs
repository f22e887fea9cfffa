//! A state that may be larger than memory: named tensors of any type, as a stream.
//!
//! # In prose first
//!
//! Whoever has a state lends it as a [`StateSource`]: the list of its tensors (name, type, shape), and then their bytes,
//! chunk by chunk, in the order of the list. Whoever takes one in is a [`StateSink`]: it is told the list first, then
//! gets the bytes in that order, and then the end. [`transfer`] moves one into the other, a chunk at a time, so that no
//! more than [`CHUNK_BYTES`] of a state need be in memory however large it is. Before the end came nothing of what a sink
//! took in may be used: what a stream is worth is known then.
//!
//! There is **one encoding**, canonical safetensors: [`Encoder`] is a sink that writes it to anything that takes bytes,
//! [`Decoder`] a source that reads it from anything that gives some. A file is the encoding in a [`FileSink`], a stream to
//! a neighbour is the same bytes in a socket or a call, and the name of both is the SHA-256 of the same bytes as they pass
//! ([`Encoder::encoded`], [`Hashing`]). Equal states have equal bytes: tensors lie in the order of the format's own
//! writer, the metadata is sorted, and JSON has one spelling.
//! Source: github.com/huggingface/safetensors, README, "Format".
//!
//! # Why sources and sinks block
//!
//! libtorch's thread, the file system and SHA-256 block whatever they are called from, so that async would buy nothing
//! there and cost a copy or a channel for every chunk; only a gRPC stream is async. A source and a sink therefore run on a
//! thread that may block (`spawn_blocking`, or the engine's own), and a stream of gRPC messages is joined to them by a
//! bounded channel: towards the network an `io::Write` whose `write` is the channel's `blocking_send`, under an
//! [`Encoder`]; from there an `io::Read` whose `read` is `blocking_recv`, under a [`Decoder`]. A full channel holds the
//! thread, and with it the source: nothing is queued without bound.
//!
//! # What lies with libtorch
//!
//! Weights, moments and the like that live on the engine's thread are lent in slices: a [`FromTensors`] has the list and
//! asks for one chunk at a time, for example by a command that copies that part of the tensor into the buffer it came
//! with. Between two chunks the thread is free, but the tensors must stay as they are until the end: no step in between.
//! On the way in, a sink's `write` is a command that copies a chunk to its place in a tensor made at `begin`. What is
//! small and does not live there (counters, a schedule) comes from another source. As each of them is in canonical order,
//! the source of both goes through them like a merge, always taking the tensor that [`TensorList`] sorts first.
//!
//! The suite that every source and sink passes is in `conformance.rs`.

#[cfg(test)]
mod conformance;
mod cursor;
mod decoder;
mod encoder;
mod error;
mod file;
mod fill;
mod hash;
mod header;
mod limits;
mod memory;
mod stream;
mod tensor;
#[cfg(test)]
mod tests;

pub use cursor::{CHUNK_BYTES, ChunkPlace, Cursor, Intake};
pub use decoder::Decoder;
pub use encoder::{Encoded, Encoder};
pub use error::{StateError, TensorProblem};
pub use file::{FileSink, open_file};
pub use hash::{Hashing, TensorsHash, Verified};
pub use header::{Header, Metadata};
pub use limits::{LARGEST_HEADER, LONGEST_NAME, MOST_DIMENSIONS, MOST_METADATA, MOST_TENSORS};
pub use memory::{MemorySink, MemoryState};
pub use stream::{FromTensors, State, StateSink, StateSource, transfer};
pub use tensor::{Dtype, TensorInfo, TensorList};
