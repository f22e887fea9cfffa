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
    files: mpsc::Sender<PathBuf>,
    task: AbortOnDropHandle<Result<(), RankError>>,
}

impl Uploads {
    pub(super) fn start(job: JobId, client: ArtifactClient) -> Self {
        let (files, mut queue) = mpsc::channel::<PathBuf>(QUEUED_FILES);
        let task = tokio::spawn(async move {
            while let Some(file) = queue.recv().await {
                client.upload(job, &file).await?;
            }
            Ok(())
        });
        Self { files, task: AbortOnDropHandle::new(task) }
    }

    /// Waits only when very many files wait already.
    pub(super) async fn push(&self, file: PathBuf) {
        // The queue is closed only by a failure, which `finish` reports.
        let _ = self.files.send(file).await;
    }

    /// Waits until all are there.
    pub(super) async fn finish(self) -> Result<(), RankError> {
        drop(self.files);
        self.task.await?
    }
}
