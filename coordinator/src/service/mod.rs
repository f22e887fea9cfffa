//! The one task that owns the state, and the handle that everybody else has.
//!
//! Commands come over a bounded channel. The loop takes as many as wait, applies them to a copy of
//! the state, stores all writes in one commit, and only then makes the copy the state, answers, and
//! does what was decided. A commit that fails leaves no trace: requests get the error, and workers
//! whose words were lost are disconnected, so that they say hello again and tell what they hold.
//!
//! Invariant: nothing is acknowledged or acted upon before it is stored.

mod batch;
mod clock;
mod error;
mod handle;
mod progress;
mod run;
mod watch;
mod watch_many;
mod watchers;

pub use clock::Clock;
pub use error::Error;
pub use handle::{Handle, Out};
pub use run::{Settings, start};
pub use watch::{News, Watch};
pub use watch_many::{ManyNews, WatchMany};
