//! Spans of jobs, sent to a collector by OTLP over gRPC.
//!
//! Whoever works [`Tracer::record`]s spans, or [`Tracer::open`]s them; a task of the [`Exporter`] sends them. Between the
//! two is a bounded queue: nobody ever waits for a collector, and what does not fit is lost and counted.
//!
//! Spans are known by their times and names here, not by what calls what: a job's queue, or a ring, begins in one event and
//! ends in another one, perhaps after a restart.
//!
//! Invariant: of a job's words, no span has any: ids, numbers and names of states alone.

mod channel;
mod complaints;
mod error;
mod exporter;
mod span;
mod tracer;
mod wire;

pub use error::Error;
pub use exporter::{About, Exporter, start};
pub use span::{Span, Value};
pub use tracer::{Open, Tracer};
