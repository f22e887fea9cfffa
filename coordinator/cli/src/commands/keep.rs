//! Files that are saved as soon as a job announces them, so that a run that is killed leaves them.

use std::path::PathBuf;

use ringtune_proto::v1;
use ringtune_shared::checkpoint::step_of_name;
use tokio::{sync::mpsc, task::JoinHandle};
use tonic::Code;

use crate::{checkpoints::remove_oldest, client::Client, error::Error, output::remark};

/// Announced files that wait for the one before them; those that find no place are saved at the job's end.
const QUEUED_FILES: usize = 256;

/// Saves checkpoints, and embeddings on the way, beside the job.
#[derive(Debug)]
pub(super) struct Keeper {
    announced: mpsc::Sender<v1::Artifact>,
    task: JoinHandle<()>,
}

impl Keeper {
    /// `limit`: checkpoints in `folder` at most; 0: any number.
    pub(super) fn start(client: Client, folder: PathBuf, limit: u64) -> Self {
        let (announced, mut queue) = mpsc::channel::<v1::Artifact>(QUEUED_FILES);
        let task = tokio::spawn(async move {
            while let Some(artifact) = queue.recv().await {
                if let Err(error) = keep(&client, &artifact, &folder, limit).await {
                    remark(&format!("warning: {} is not saved yet: {error}", artifact.name));
                }
            }
        });
        Self { announced, task }
    }

    /// Takes note of a file.
    pub(super) fn announce(&self, artifact: &v1::Artifact) {
        let on_the_way = artifact.name.starts_with("learned_embeds") && artifact.name.contains("-steps-");
        if on_the_way || step_of_name(&artifact.name).is_some() {
            // If there is no place it is saved at the end.
            let _ = self.announced.try_send(artifact.clone());
        }
    }

    /// Waits until what was announced is saved.
    pub(super) async fn finish(self) {
        drop(self.announced);
        // A panic in the task has been reported already.
        let _ = self.task.await;
    }
}

async fn keep(
    client: &Client,
    artifact: &v1::Artifact,
    folder: &std::path::Path,
    limit: u64,
) -> Result<(), Error> {
    match client.download(artifact, folder).await {
        Ok(_) => (),
        // One of those that are too many by now.
        Err(error) if error.code() == Some(Code::NotFound) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let Some(step) = step_of_name(&artifact.name) else { return Ok(()) };
    let owned = folder.to_owned();
    let removed = tokio::task::spawn_blocking(move || remove_oldest(&owned, limit, step)).await;
    match removed.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
        Ok(()) => Ok(()),
        Err(source) => {
            Err(Error::File { doing: "cannot remove old checkpoints in", path: folder.to_owned(), source })
        }
    }
}
