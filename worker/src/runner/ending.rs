//! How a rank's work ends, and what it leaves.

use std::{future, time::Duration};

use tokio::{sync::watch, time::timeout};

use super::{
    RankError,
    files::{JobFiles, Left},
    task::Work,
};
use crate::session::{EndOrder, RankOrders};

/// A neighbour that fails tells the coordinator why, and the coordinator ends us. Only when that does not come is
/// "my neighbour is gone" the best reason there is.
pub(super) const WAIT_FOR_A_BETTER_REASON: Duration = Duration::from_secs(3);
/// For what a failed job leaves.
pub(super) const LAST_UPLOAD: Duration = Duration::from_secs(10);

impl Work {
    /// Uploads what the outcome calls for.
    pub(super) async fn finish(
        &self,
        trained: Result<(), RankError>,
        files: Option<JobFiles>,
        left: Left,
        mut orders: watch::Receiver<RankOrders>,
    ) -> Result<(), RankError> {
        let journal = &self.journal;
        match trained {
            Ok(()) => {
                journal.info("training is done").await;
                let Some(mut files) = files else { return Ok(()) };
                tokio::select! {
                    uploaded = files.finish(left) => uploaded,
                    _ = dropped(&mut orders) => Err(RankError::Stopped),
                }
            }
            Err(RankError::Stopped) => self.stop(files, left, orders).await,
            // A neighbour that was told to stop a moment before us has left the ring already.
            Err(RankError::Ring(error)) => {
                match timeout(WAIT_FOR_A_BETTER_REASON, ended(&mut orders)).await {
                    Ok(_) => self.stop(files, left, orders).await,
                    Err(_) => self.fail(RankError::Ring(error), files, left, orders).await,
                }
            }
            Err(error) => self.fail(error, files, left, orders).await,
        }
    }

    /// Ends as asked to; keeps the artifacts if that was asked for too.
    async fn stop(
        &self,
        files: Option<JobFiles>,
        left: Left,
        mut orders: watch::Receiver<RankOrders>,
    ) -> Result<(), RankError> {
        self.journal.info("stopped on request").await;
        let keep = orders.borrow().end.is_some_and(|end| end.keep_artifacts);
        if let (true, Some(mut files)) = (keep, files) {
            tokio::select! {
                uploaded = files.finish(left) => {
                    if let Err(error) = uploaded {
                        self.journal.warn(format!("artifacts could not be kept: {error}")).await;
                    }
                }
                _ = dropped(&mut orders) => (),
            }
        }
        Err(RankError::Stopped)
    }

    /// Says what went wrong, and leaves what there is.
    async fn fail(
        &self,
        error: RankError,
        files: Option<JobFiles>,
        left: Left,
        mut orders: watch::Receiver<RankOrders>,
    ) -> Result<(), RankError> {
        self.journal.error(error.to_string()).await;
        if let Some(mut files) = files {
            // What cannot be kept in time is lost; the job has failed for another reason.
            tokio::select! {
                _ = timeout(LAST_UPLOAD, files.finish(left)) => (),
                () = dropped(&mut orders) => (),
            }
        }
        Err(error)
    }
}

/// Why rank 0's files no longer get to the coordinator. Never ends while they do.
pub(super) async fn upload_failure(files: &mut Option<JobFiles>) -> RankError {
    match files {
        Some(files) => files.upload_failure().await,
        None => future::pending().await,
    }
}

/// Completes when the rank is to end, or when nobody holds its control any more.
pub(super) async fn ended(orders: &mut watch::Receiver<RankOrders>) -> Option<EndOrder> {
    match orders.wait_for(|orders| orders.end.is_some()).await {
        Ok(orders) => orders.end,
        Err(_) => None,
    }
}

/// Completes when the rank is to end without keeping anything.
pub(super) async fn dropped(orders: &mut watch::Receiver<RankOrders>) {
    let _ = orders.wait_for(|orders| orders.end.is_some_and(|end| !end.keep_artifacts)).await;
}
