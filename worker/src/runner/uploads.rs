//! Files on their way to the coordinator while training goes on.

use std::path::PathBuf;

use ringtune_shared::ids::JobId;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{ArtifactClient, RankError};

/// Embeddings that may wait for a coordinator that is away; then the steps wait.
const QUEUED_FILES: usize = 4096;

/// Uploads one file after the other. Dropping it gives the rest up.
#[derive(Debug)]
pub(super) struct Uploads {
    orders: mpsc::Sender<Order>,
    task: AbortOnDropHandle<Result<(), RankError>>,
}

/// What is to be done at the coordinator, in order.
#[derive(Debug)]
enum Order {
    Upload(PathBuf),
    /// Take the file off the job, here and there.
    Delete(PathBuf),
}

impl Uploads {
    pub(super) fn start(job: JobId, client: ArtifactClient) -> Self {
        let (orders, mut queue) = mpsc::channel::<Order>(QUEUED_FILES);
        let task = tokio::spawn(async move {
            while let Some(order) = queue.recv().await {
                match order {
                    Order::Upload(file) => client.upload(job, &file).await?,
                    Order::Delete(file) => {
                        client.delete(job, &file).await?;
                        // What cannot be removed goes with the folder.
                        let _ = tokio::fs::remove_file(&file).await;
                    }
                }
            }
            Ok(())
        });
        Self { orders, task: AbortOnDropHandle::new(task) }
    }

    /// Waits only when very many files wait already.
    pub(super) async fn push(&self, file: PathBuf) {
        // The queue is closed only by a failure, which `finish` reports.
        let _ = self.orders.send(Order::Upload(file)).await;
    }

    /// Deletes a file that was pushed before.
    pub(super) async fn delete(&self, file: PathBuf) {
        let _ = self.orders.send(Order::Delete(file)).await;
    }

    /// Waits until all are there.
    pub(super) async fn finish(self) -> Result<(), RankError> {
        drop(self.orders);
        self.task.await?
    }
}
