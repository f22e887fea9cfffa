//! Moves what was committed from the log (WAL) into the database, beside the connection that commits: else every so many
//! commits one of them does it, and whoever waits for it waits for the disk to take it all.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::readers::Readers;

/// Pages in the log at which a commit moves them after all. Only then is the log begun anew, and there is little left to
/// move.
pub(super) const LONGEST_LOG: &str = "8192";
/// Between two moves while there are commits.
const PAUSE: Duration = Duration::from_millis(500);

/// Moves until the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct LogMover {
    committed: Arc<Notify>,
    _task: Arc<AbortOnDropHandle<()>>,
}

impl LogMover {
    /// `readers`: SQLite lets connections move pages that may not write themselves.
    pub(super) fn start(readers: Readers) -> Self {
        let committed = Arc::new(Notify::new());
        let task = tokio::spawn(run(readers, committed.clone()));
        Self { committed, _task: Arc::new(AbortOnDropHandle::new(task)) }
    }

    /// There is something to move.
    pub(super) fn committed(&self) {
        self.committed.notify_one();
    }
}

async fn run(readers: Readers, committed: Arc<Notify>) {
    loop {
        committed.notified().await;
        tokio::time::sleep(PAUSE).await;
        // Passive: waits for nobody and lets nobody wait.
        match sqlx::raw_sql("PRAGMA wal_checkpoint(PASSIVE)").execute(&readers).await {
            Ok(_) => {}
            Err(sqlx::Error::PoolClosed) => return,
            Err(error) => warn!(%error, "could not move commits from the log into the database"),
        }
    }
}
