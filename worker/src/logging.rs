//! The process's logs: the same in both daemons.

pub use ringtune_shared::daemon::logging::{LoggingError, start};
