//! Owned by a slice that is still being written.
