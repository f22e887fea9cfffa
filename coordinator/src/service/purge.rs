//! Removes what deleted jobs left, a little at a time, beside the loop.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::store::Store;

/// Rows removed in one transaction: commits of the loop wait no longer than for that.
const ROWS: u32 = 500;

/// Runs until `over`. Begins with what an earlier coordinator did not come to.
pub(super) async fn run(store: Arc<dyn Store>, deleted: Arc<Notify>, over: CancellationToken) {
    loop {
        loop {
            match store.purge(ROWS).await {
                Ok(true) if !over.is_cancelled() => {}
                Ok(_) => break,
                Err(error) => {
                    warn!(%error, "cannot remove what deleted jobs left; trying again after the next deletion");
                    break;
                }
            }
        }
        tokio::select! {
            () = deleted.notified() => {}
            () = over.cancelled() => return,
        }
    }
}
