//! The one task that owns the state, and the handle that everybody else has.
//!
//! Commands come over a bounded channel, each stamped with the time at which it arrived. The loop takes as many as wait,
//! applies them to a copy of the state, forms the rings that can be formed, stores all writes in one commit, and only
//! then makes the copy the state, answers, and does what was decided. A commit that fails leaves no trace: requests get
//! the error, and workers whose words were lost are disconnected, so that they say hello again and tell what they hold.
//!
//! Invariant: nothing is acknowledged or acted upon before it is stored.
//! Invariant: the loop waits for its own commits and for nothing else; who needs more of the store asks it before or after
//! (`handle.rs`).
//! Invariant: while nothing can be stored, nothing is decided: who asks is refused, workers are disconnected, and only the store
//! is tried (`run/failing.rs`). Once it works again, after more than a moment, the loop begins as after a restart: those who
//! could not say that they live get the time to.
//! Invariant: the service manager's watchdog hears of a pass of the loop only once its commit went well, or the disk was found
//! to be full, which is waited for. A store that hangs stops it; one that fails by itself stops it too, but ends the loop
//! long before the watchdog would (`STORE_PATIENCE`), in an exit that says why, and never in a kill in the middle of a write.

mod batch;
mod clock;
mod error;
mod handle;
mod outlooks;
mod pace;
mod progress;
mod purge;
mod run;
mod spans;
mod timings;
mod waits;
mod watch;
mod watch_many;
mod watchers;

pub use clock::Clock;
pub use error::Error;
pub use handle::{Handle, LoopLimits, Out};
pub use run::{STORE_PATIENCE, Settings, start};
pub use timings::RingTimings;
pub use waits::Waits;
pub use watch::{News, Watch};
pub use watch_many::{ManyNews, WatchMany};
