//! Tasks and threads whose log lines are about what those are about who starts them
//! ([`ABOUT`](crate::daemon::logging::ABOUT)).
//!
//! Whatever works on behalf of a rank starts tasks and threads here.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::{Instrument as _, Span};

/// As [`tokio::spawn`].
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(future.in_current_span())
}

/// As [`spawn`], in another runtime.
pub fn spawn_on<F>(runtime: &Handle, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    runtime.spawn(future.in_current_span())
}

/// As [`tokio::task::spawn_blocking`].
pub fn spawn_blocking<T, W>(work: W) -> JoinHandle<T>
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let span = Span::current();
    tokio::task::spawn_blocking(move || span.in_scope(work))
}
