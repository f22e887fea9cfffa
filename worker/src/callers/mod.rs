//! Authorisation of calls to a worker's ports.
//!
//! Without TLS everybody may do everything. With TLS a call is let in by the role that its certificate names; a worker
//! knows no bearer tokens. Each caller has a rate of calls of its own. Whose place in a ring a call is for is decided where the places are (`ring`).
//!
//! Invariant: a call without a row in `table.rs` is refused, and the worker does not start if a row is missing.

mod grpc;
mod http;
mod table;

pub(crate) use grpc::GuardCalls;
pub(crate) use http::{PageGuard, guard};
pub use table::{CALLS, Denied, PAGES, TableError, Who, check_calls, check_pages};
