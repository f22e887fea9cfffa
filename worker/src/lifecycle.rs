//! When the process is to end: the same in both daemons.

pub use ringtune_shared::daemon::lifecycle::{DRAIN_LIMIT, Shutdown};
