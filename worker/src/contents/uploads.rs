//! Files on their way to the coordinator, and to the job's bucket, while the work goes on.

use std::{
    future,
    path::{Path, PathBuf},
};

use ringtune_shared::{ids::JobId, job::S3Model};
use ringtune_sources::{ModelSources, Upload};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use super::{ArtifactClient, Error};
use crate::session::{RankOrders, ended, stored};

/// Files that may wait for a coordinator that is away; then the work waits.
const QUEUED_FILES: usize = 4096;

/// Uploads one file after the other. Dropping it gives the rest up.
#[derive(Debug)]
pub(crate) struct Uploads {
    /// Takes them in.
    pub(crate) queue: UploadQueue,
    /// Sends them.
    pub(crate) task: UploadTask,
    job: JobId,
    client: ArtifactClient,
    bucket: Option<OutputBucket>,
}

/// Where a job's files go besides the coordinator.
#[derive(Clone, Debug)]
pub(crate) struct OutputBucket {
    /// Opens it.
    pub(crate) sources: ModelSources,
    /// The bucket, and the prefix of the files' names.
    pub(crate) place: S3Model,
}

/// Queue of files to upload.
#[derive(Debug)]
pub(crate) struct UploadQueue {
    orders: mpsc::Sender<Order>,
    rank: watch::Receiver<RankOrders>,
    /// Orders that came while the queue was full and the rank was ending: the last files.
    late: Vec<Order>,
}

/// The task that sends the files.
#[derive(Debug)]
pub(crate) struct UploadTask {
    /// None once it has ended and said how.
    running: Option<AbortOnDropHandle<Result<(), Error>>>,
}

/// An order for the coordinator, in order.
#[derive(Debug)]
enum Order {
    Upload {
        file: PathBuf,
        /// Not before the coordinator has this step's report.
        after: Option<u64>,
    },
    /// Take the file off the job, here and there.
    Delete(PathBuf),
}

impl Uploads {
    /// `rank`: what the rank was told so far.
    pub(crate) fn start(
        job: JobId,
        client: ArtifactClient,
        bucket: Option<OutputBucket>,
        rank: watch::Receiver<RankOrders>,
    ) -> Self {
        let (orders, queue) = mpsc::channel(QUEUED_FILES);
        let sending = send(queue, job, client.clone(), bucket.clone(), rank.clone());
        let sending = ringtune_shared::tasks::spawn(sending);
        let queue = UploadQueue { orders, rank, late: Vec::new() };
        let task = UploadTask { running: Some(AbortOnDropHandle::new(sending)) };
        Self { queue, task, job, client, bucket }
    }

    /// For what is left to send at the end. What one file was refused for need not hold for the next.
    pub(crate) fn for_the_last_files(self) -> Self {
        match self.task.running {
            Some(_) => self,
            None => Self::start(self.job, self.client, self.bucket, self.queue.rank),
        }
    }

    /// Sends for the same rank, beside the queue.
    pub(crate) fn client(&self) -> ArtifactClient {
        self.client.clone()
    }

    /// The rank's orders.
    pub(crate) fn orders(&self) -> watch::Receiver<RankOrders> {
        self.queue.rank.clone()
    }

    /// Waits until all are there.
    pub(crate) async fn finish(self) -> Result<(), Error> {
        let Self { queue, mut task, .. } = self;
        for order in queue.late {
            // Closed by a failure, which the task tells.
            let _ = queue.orders.send(order).await;
        }
        drop(queue.orders);
        task.outcome().await
    }
}

async fn send(
    mut queue: mpsc::Receiver<Order>,
    job: JobId,
    client: ArtifactClient,
    bucket: Option<OutputBucket>,
    mut rank: watch::Receiver<RankOrders>,
) -> Result<(), Error> {
    while let Some(order) = queue.recv().await {
        match order {
            Order::Upload { file, after } => {
                if let Some(step) = after {
                    stored(&mut rank, step).await;
                }
                client.upload(job, &file).await?;
                if let Some(bucket) = &bucket {
                    bucket.put(&file).await?;
                }
            }
            Order::Delete(file) => {
                client.delete(job, &file).await?;
                if let Some(bucket) = &bucket {
                    bucket.remove(&file).await?;
                }
                // A file that cannot be removed goes with the folder.
                let _ = tokio::fs::remove_file(&file).await;
            }
        }
    }
    Ok(())
}

impl OutputBucket {
    /// Whether it takes files.
    ///
    /// # Errors
    /// It does not.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        Ok(self.sources.check_writable(&self.place).await?)
    }

    async fn put(&self, file: &Path) -> Result<(), Error> {
        let upload = Upload { name: name_of(file), path: file.to_owned() };
        Ok(self.sources.put(&self.place, &upload).await?)
    }

    async fn remove(&self, file: &Path) -> Result<(), Error> {
        Ok(self.sources.remove(&self.place, &name_of(file)).await?)
    }
}

/// A file's name, under which the job keeps it.
fn name_of(file: &Path) -> String {
    file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

impl UploadQueue {
    /// Waits only when very many files wait already, and then no longer than the rank is to go on.
    pub(crate) async fn push(&mut self, file: PathBuf) {
        self.push_after(file, None).await;
    }

    /// As above, of a checkpoint: it is sent once the report of its step is stored, so
    /// that a history which goes on from it has no hole.
    pub(crate) async fn push_after(&mut self, file: PathBuf, after: Option<u64>) {
        self.add(Order::Upload { file, after }).await;
    }

    /// Deletes a file that was pushed before.
    pub(crate) async fn delete(&mut self, file: PathBuf) {
        self.add(Order::Delete(file)).await;
    }

    async fn add(&mut self, order: Order) {
        if !self.late.is_empty() {
            self.late.push(order);
            return;
        }
        tokio::select! {
            biased;
            // The queue is closed only by a failure, which the task tells.
            room = self.orders.reserve() => if let Ok(room) = room {
                room.send(order);
            },
            _ = ended(&mut self.rank) => self.late.push(order),
        }
    }
}

impl UploadTask {
    /// Why no more files are sent. Never ends while they are.
    pub(crate) async fn failure(&mut self) -> Error {
        match self.outcome().await {
            Err(error) => error,
            Ok(()) => future::pending().await,
        }
    }

    async fn outcome(&mut self) -> Result<(), Error> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let outcome = running.await;
        self.running = None;
        outcome?
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::session::EndOrder;

    /// Uploads to nobody, and what tells the rank to end.
    fn uploads() -> (Uploads, watch::Sender<RankOrders>) {
        let (rank, orders) = watch::channel(RankOrders::default());
        let client = ArtifactClient::new("http://127.0.0.1:1", None).unwrap();
        (Uploads::start(JobId::new(), client, None, orders), rank)
    }

    #[tokio::test]
    async fn a_full_queue_is_waited_for_only_as_long_as_the_rank_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, b"a").unwrap();
        let (mut uploads, rank) = uploads();
        // One more than the queue holds may be in flight.
        while timeout(Duration::from_millis(50), uploads.queue.push(file.clone())).await.is_ok() {}
        assert!(uploads.queue.late.is_empty());
        {
            let mut waiting = Box::pin(uploads.queue.push(file.clone()));
            assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
            rank.send_modify(|orders| orders.end = Some(EndOrder { keep_artifacts: true }));
            waiting.await;
        }
        uploads.queue.delete(file).await;
        // Neither is lost, nor is their order.
        assert!(matches!(&uploads.queue.late[..], [Order::Upload { .. }, Order::Delete(_)]));
    }

    #[tokio::test]
    async fn a_failure_is_told_at_once_and_what_comes_after_it_is_sent_anew() {
        let (mut uploads, _rank) = uploads();
        uploads.queue.push("/nowhere/at/all".into()).await;
        let error = uploads.task.failure().await;
        assert!(matches!(error, Error::Io { .. }), "{error}");
        // It goes on taking files, which go nowhere, and is told once.
        uploads.queue.push("/nowhere/at/all".into()).await;
        assert!(timeout(Duration::ZERO, uploads.task.failure()).await.is_err());
        let mut last = uploads.for_the_last_files();
        last.queue.push("/nowhere/else".into()).await;
        assert!(last.finish().await.unwrap_err().to_string().contains("/nowhere/else"));
    }

    #[tokio::test]
    async fn what_follows_a_step_waits_for_its_report() {
        let (mut uploads, rank) = uploads();
        let missing = PathBuf::from("/nowhere/at/all");
        uploads.queue.push_after(missing, Some(7)).await;
        rank.send_modify(|orders| orders.stored_step = 6);
        let early = timeout(Duration::from_millis(100), uploads.task.failure()).await;
        assert!(early.is_err(), "it is sent before its step is stored");
        rank.send_modify(|orders| orders.stored_step = 7);
        assert!(matches!(uploads.task.failure().await, Error::Io { .. }));
    }
}
