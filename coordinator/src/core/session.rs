//! Streams between workers and the coordinator, as the core knows them.

use ringtune_shared::ids::WorkerId;

/// One stream between a worker and the coordinator; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Who says something, and on which session: words from an older session are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// The worker.
    pub worker: WorkerId,
    /// The session it speaks on.
    pub session: SessionId,
}
