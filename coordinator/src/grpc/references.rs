//! Which contents are still wanted: those that a job lists, and those that a job's images, embeddings and checkpoint are.

mod embeddings;

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use ringtune_shared::checkpoint::{Checkpoint, LARGEST_FILE, ResumeFrom, Resumed};
use ringtune_shared::ids::{ContentHash, Epoch, JobId};
use ringtune_shared::manifest::{LARGEST_MANIFEST, Manifest};
use ringtune_shared::spec::{EmbeddingPlace, JobSpec};
use tokio::sync::RwLock;
use tonic_types::FieldViolation;
use tracing::info;

use super::blocking;
use super::status::FailedRequest;
use crate::contents::{self, Contents};
use crate::core::ArtifactRecord;
use crate::service::Handle;

/// The field of a request that names a job's checkpoint.
const CHECKPOINT_FIELD: &str = "spec.train.resume_from_checkpoint";
/// Uploads that broke off, and contents that no job wants, are kept for so long.
const KEEP: Duration = Duration::from_secs(24 * 3600);

/// Ties contents to jobs, and lets go of those that are tied to none.
pub(super) struct References {
    handle: Handle,
    contents: Contents,
    /// Held shared while a content is tied to a job, alone while contents are let go: none goes between.
    gate: RwLock<()>,
}

impl References {
    pub(super) fn new(handle: Handle, contents: Contents) -> Self {
        Self { handle, contents, gate: RwLock::new(()) }
    }

    /// Lists a file with its job, if the file is still there.
    pub(super) async fn keep(
        &self,
        record: ArtifactRecord,
        epoch: Option<Epoch>,
    ) -> Result<(), FailedRequest> {
        let _tying = self.gate.read().await;
        let (contents, hash) = (self.contents.clone(), record.hash);
        let committed = blocking(move || contents.committed(&hash)).await??;
        if !committed.complete {
            return Err(contents::Error::NotFound(hash).into());
        }
        Ok(self.handle.keep_artifact(record, epoch).await?)
    }

    /// Checks that a job's images are all here: the manifest, and every file that it names. Returns how many there are.
    ///
    /// They count as used from now on: the sweep leaves them for another day.
    /// `field`: the job's that says so.
    pub(super) async fn check(&self, field: &str, uri: &str) -> Result<u64, Vec<FieldViolation>> {
        let refuse = |problem: String| vec![FieldViolation::new(format!("spec.{field}"), problem)];
        let hash = ContentHash::from_uri(uri).map_err(|error| refuse(error.to_string()))?;
        let contents = self.contents.clone();
        let _tying = self.gate.read().await;
        let checked = blocking(move || count_images(&contents, hash)).await;
        checked.unwrap_or_else(|_| Err("the check was broken off".to_owned())).map_err(refuse)
    }

    /// Reads the checkpoint that a job is to go on from, if it is to, and checks that it is that job's. It counts as used
    /// from now on.
    pub(super) async fn resumed(&self, spec: &JobSpec) -> Result<Option<Resumed>, Vec<FieldViolation>> {
        let refuse = |problem: String| vec![FieldViolation::new(CHECKPOINT_FIELD, problem)];
        let text = &spec.train.resume_from_checkpoint;
        let hash = match ResumeFrom::parse(text) {
            Ok(ResumeFrom::Nothing) => return Ok(None),
            Ok(ResumeFrom::Uploaded(hash)) => hash,
            Ok(_) => {
                let allowed =
                    "the artifact:// URI of an uploaded checkpoint (`ringtune run` and `submit` upload it)";
                return Err(refuse(format!("got {text:?}; allowed: {allowed}")));
            }
            Err(error) => return Err(refuse(error.to_string())),
        };
        let contents = self.contents.clone();
        let _tying = self.gate.read().await;
        let read = blocking(move || read_checkpoint(&contents, hash)).await;
        let checkpoint =
            read.unwrap_or_else(|_| Err("the check was broken off".to_owned())).map_err(refuse)?;
        checkpoint.about.check(spec).map_err(refuse)?;
        Ok(Some(checkpoint.resumed()))
    }

    /// Takes a file off a job, and removes its content if nobody else has it.
    pub(super) async fn drop_artifact(
        &self,
        job: JobId,
        name: String,
        epoch: Option<Epoch>,
    ) -> Result<(), FailedRequest> {
        let _alone = self.gate.write().await;
        let Some(hash) = self.handle.drop_artifact(job, name, epoch).await? else { return Ok(()) };
        if self.handle.store().artifact_of_content(hash).await?.is_some() {
            return Ok(());
        }
        let sources = self.handle.store().content_uris().await?;
        let contents = self.contents.clone();
        let remove = move || match image_contents(&contents, &sources).contains(&hash) {
            true => Ok(()),
            false => contents.remove(&hash),
        };
        Ok(blocking(remove).await??)
    }

    /// Forgets a job, and removes the files that were its alone.
    pub(super) async fn delete_job(&self, id: JobId) -> Result<(), FailedRequest> {
        let _alone = self.gate.write().await;
        let free = self.handle.delete_job(id).await?;
        if free.is_empty() {
            return Ok(());
        }
        let sources = self.handle.store().content_uris().await?;
        let contents = self.contents.clone();
        let remove = move || {
            let images = image_contents(&contents, &sources);
            free.iter().filter(|hash| !images.contains(*hash)).try_for_each(|hash| contents.remove(hash))
        };
        Ok(blocking(remove).await??)
    }

    /// Removes uploads that broke off and contents that no job wants, once they are a day old.
    pub(super) async fn sweep(&self, now: SystemTime) -> Result<(), FailedRequest> {
        let contents = self.contents.clone();
        let (dropped, old) = blocking(move || {
            Ok::<_, contents::Error>((contents.drop_abandoned(now, KEEP)?, contents.older(now, KEEP)?))
        })
        .await??;
        let _alone = self.gate.write().await;
        let store = self.handle.store();
        let sources = store.content_uris().await?;
        let mut unlisted = Vec::new();
        for hash in old {
            if store.artifact_of_content(hash).await?.is_none() {
                unlisted.push(hash);
            }
        }
        let contents = self.contents.clone();
        let remove = move || {
            let images = image_contents(&contents, &sources);
            let unwanted: Vec<ContentHash> =
                unlisted.into_iter().filter(|hash| !images.contains(hash)).collect();
            unwanted.iter().try_for_each(|hash| contents.remove(hash))?;
            Ok::<usize, contents::Error>(unwanted.len())
        };
        let removed = blocking(remove).await??;
        if dropped + removed > 0 {
            info!(uploads = dropped, contents = removed, "removed files that nobody wants");
        }
        Ok(())
    }
}

/// The number of a manifest's images; or what of them is not here, in words. Blocks.
fn count_images(contents: &Contents, hash: ContentHash) -> Result<u64, String> {
    let manifest = manifest(contents, hash)?;
    for file in manifest.files() {
        let committed = contents.committed(&file.sha256).map_err(|error| error.to_string())?;
        if !committed.complete || committed.size != file.size {
            return Err(format!("{:?} ({}) is not uploaded yet", file.name, file.sha256));
        }
        contents.touch(&file.sha256).map_err(|error| error.to_string())?;
    }
    contents.touch(&hash).map_err(|error| error.to_string())?;
    Ok(manifest.files().len() as u64)
}

/// Blocks.
fn read_checkpoint(contents: &Contents, hash: ContentHash) -> Result<Checkpoint, String> {
    let bytes = read_whole(contents, hash, LARGEST_FILE)?;
    let checkpoint = Checkpoint::from_bytes(&bytes).map_err(|error| format!("{}: {error}", hash.uri()))?;
    contents.touch(&hash).map_err(|error| error.to_string())?;
    Ok(checkpoint)
}

/// A content of at most `limit` bytes. Blocks.
fn read_whole(contents: &Contents, hash: ContentHash, limit: u64) -> Result<Vec<u8>, String> {
    let mut range = contents.read(&hash, 0, None).map_err(|error| match error {
        contents::Error::NotFound(hash) => format!("{} is not uploaded yet", hash.uri()),
        other => other.to_string(),
    })?;
    let size = range.content_size;
    if size > limit {
        return Err(format!("{} has {size} bytes; allowed: at most {limit}", hash.uri()));
    }
    range.next_chunk(usize::try_from(size).unwrap_or(0)).map_err(|error| error.to_string())
}

fn manifest(contents: &Contents, hash: ContentHash) -> Result<Manifest, String> {
    let mut range = contents.read(&hash, 0, None).map_err(|error| match error {
        contents::Error::NotFound(hash) => format!("{} is not uploaded yet", hash.uri()),
        other => other.to_string(),
    })?;
    if range.content_size > LARGEST_MANIFEST as u64 {
        return Err(format!("{} has {} bytes: no image manifest", hash.uri(), range.content_size));
    }
    let json = range.next_chunk(LARGEST_MANIFEST).map_err(|error| error.to_string())?;
    Manifest::parse(&json).map_err(|error| error.to_string())
}

/// The content that a text of a job's spec names: an embedding's address has the file's name behind it.
fn content_of(source: &str) -> Option<ContentHash> {
    match EmbeddingPlace::parse(source) {
        Ok(EmbeddingPlace::Uploaded { hash, .. }) => Some(hash),
        _ => None,
    }
}

/// All contents that the images, checkpoints and embeddings of jobs are. Blocks.
fn image_contents(contents: &Contents, sources: &[String]) -> HashSet<ContentHash> {
    let mut wanted = HashSet::new();
    for hash in sources.iter().filter_map(|source| content_of(source)) {
        wanted.insert(hash);
        // A manifest that cannot be read, or a checkpoint, names nothing that could be kept.
        if let Ok(manifest) = manifest(contents, hash) {
            wanted.extend(manifest.files().iter().map(|file| file.sha256));
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_known_by_their_address_with_a_name_behind_it_or_without() {
        let hash = ContentHash::of(b"embedding");
        assert_eq!(content_of(&hash.uri()), Some(hash));
        assert_eq!(content_of(&EmbeddingPlace::uploaded(&hash.uri(), "cat.pt")), Some(hash));
        assert_eq!(content_of("artifact://sha256/12"), None);
        assert_eq!(content_of("/e/cat.pt"), None);
    }
}
