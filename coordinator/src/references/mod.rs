//! Ties contents to jobs, and lets go of those that no job wants.
//!
//! Which contents a job wants the store knows, by an index. Here stands when one may go: nobody wants it, nobody is
//! tying it to a job, and nobody has asked for it in the last day. What is uploaded for a job alone was never asked for
//! by anybody else, and goes with the job.

mod embeddings;
mod letting_go;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringtune_proto::convert::FieldError;
use ringtune_shared::checkpoint::{CheckpointHeader, OpenCheckpoint, ResumeFrom, Resumed, is_recovery_name};
use ringtune_shared::ids::{CONTENT_URI_PREFIX, ContentHash};
use ringtune_shared::job::JobSpec;
use ringtune_shared::manifest::{LARGEST_MANIFEST, Manifest};
use ringtune_shared::state::Hashing;

use crate::contents::{self, Claim, Claims, Contents};
use crate::core::{ArtifactRecord, Job, NewJob, NewVerification, Refusal};
use crate::quotas::{self, Quotas};
use crate::service::{self, Handle};
use crate::store;
use letting_go::Way;

/// How long a call waits for a checkpoint to be read: half of what it has by default.
const LONGEST_CHECK: Duration = Duration::from_secs(15);

/// Why contents could not be tied to a job, or let go of.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Contents(#[from] contents::Error),
    #[error(transparent)]
    Service(#[from] service::Error),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Quotas(#[from] quotas::Error),
    /// Its task panicked, or the runtime shuts down.
    #[error("{0} was interrupted")]
    Interrupted(&'static str),
}

/// Ties contents to jobs, and lets go of those that are tied to none.
pub(crate) struct References {
    handle: Handle,
    contents: Contents,
    claims: Claims,
    quotas: Quotas,
}

/// The contents that a job to be made needs, from when they were looked for: until this is dropped none of them goes.
#[derive(Default)]
pub(crate) struct Ties {
    claims: Vec<Claim>,
    /// What is held, as far as it was found.
    named: Vec<(ContentHash, u64)>,
    /// Image manifests and what they name.
    manifests: Vec<(ContentHash, Vec<ContentHash>)>,
}

impl References {
    pub(crate) fn new(handle: Handle, contents: Contents, quotas: Quotas) -> Self {
        Self { handle, contents, claims: Claims::default(), quotas }
    }

    /// Holds a content that comes in or is asked for: as long as the claim is there, it is not removed.
    pub(crate) async fn hold(&self, content: ContentHash) -> Claim {
        self.claims.share(vec![content]).await
    }

    /// Lists a file with its job, if the file, which `claim` holds, is still there.
    pub(crate) async fn keep(&self, record: ArtifactRecord, claim: Claim) -> Result<(), Error> {
        let (contents, hash) = (self.contents.clone(), record.hash);
        let committed = blocking(move || contents.committed(&hash)).await??;
        if !committed.complete {
            return Err(contents::Error::NotFound(hash).into());
        }
        let is_recovery = is_recovery_name(&record.name);
        let cluster = self.handle.cluster();
        let points = cluster.checkpoints(record.job).filter(|one| is_recovery && one.recovery);
        let before: Vec<ContentHash> = points.map(|one| one.hash).collect();
        drop(cluster);
        let handle = self.handle.clone();
        to_its_end(async move {
            let kept = handle.keep_artifact(record).await;
            drop(claim);
            Ok(kept?)
        })
        .await?;
        // Those that this one took the place of; what is not removed here is left to the sweep.
        self.let_go(&before, Way::ForGood, SystemTime::now()).await?;
        Ok(())
    }

    /// Makes a job whose contents are tied to it.
    pub(crate) async fn create_job(&self, new: NewJob, ties: Ties) -> Result<Arc<Job>, Error> {
        let (handle, queue) = (self.handle.clone(), new.queue.clone());
        // The answer to a request that comes again costs its owner nothing.
        if self.quotas.counts(&queue.owner)
            && let Some(known) = handle.requested(new.request.as_ref()).await?
        {
            return Ok(known);
        }
        self.tied(&queue.owner, ties, async move { Ok(handle.create_job(new).await?) }).await
    }

    /// Makes the jobs of a sweep, whose contents are tied to them. Gives the first.
    pub(crate) async fn create_sweep(&self, points: Vec<NewJob>, ties: Ties) -> Result<Arc<Job>, Error> {
        let handle = self.handle.clone();
        let Some(first) = points.first() else {
            return Err(service::Error::from(Refusal::EmptySweep).into());
        };
        let owner = first.queue.owner.clone();
        if let Some(known) = handle.requested(first.request.as_ref()).await? {
            return Ok(known);
        }
        self.tied(&owner, ties, async move { Ok(handle.create_sweep(points).await?) }).await
    }

    /// Makes a verification whose contents are tied to it: they stay when the job that it verifies is deleted.
    pub(crate) async fn verify_job(&self, new: NewVerification, ties: Ties) -> Result<Arc<Job>, Error> {
        let (handle, queue) = (self.handle.clone(), new.job.queue.clone());
        self.tied(&queue.owner, ties, async move { Ok(handle.verify_job(new).await?) }).await
    }

    /// Holds contents, which become an owner's, until a job is stored that names them.
    async fn tied(
        &self,
        owner: &str,
        ties: Ties,
        create: impl Future<Output = Result<Arc<Job>, Error>> + Send + 'static,
    ) -> Result<Arc<Job>, Error> {
        let (handle, quotas, owner) = (self.handle.clone(), self.quotas.clone(), owner.to_owned());
        to_its_end(async move {
            let Ties { claims, named, manifests } = ties;
            quotas.make_job(&owner, &named).await?;
            for (manifest, files) in manifests {
                handle.store().put_manifest(manifest, &files).await?;
            }
            let created = create.await;
            drop(claims);
            created
        })
        .await
    }

    /// How many images an epoch of the job shows, where all of them are uploaded. Those that are must be here.
    pub(crate) async fn check_images(
        &self,
        ties: &mut Ties,
        spec: &JobSpec,
    ) -> Result<Option<u64>, FieldError> {
        let mut places = spec.clone();
        let mut count = Some(0);
        let uses = spec.image_uses();
        for ((field, images), used) in places.image_sources().into_iter().zip(uses) {
            let uploaded = images.starts_with(CONTENT_URI_PREFIX);
            let found = if uploaded { Some(self.check_manifest(ties, &field, images).await?) } else { None };
            count = count.zip(found).map(|(count, found)| count + found * u64::from(used.repeats));
        }
        Ok(count)
    }

    /// Checks that an image manifest and every file that it names are here. Returns how many files it names.
    ///
    /// They count as used from now on: the sweep leaves them for another day. `field`: the job's that names the manifest.
    async fn check_manifest(&self, ties: &mut Ties, field: &str, uri: &str) -> Result<u64, FieldError> {
        let refuse = |problem: String| FieldError::new(format!("spec.{field}"), problem);
        let hash = ContentHash::from_uri(uri).map_err(|error| refuse(error.to_string()))?;
        if let Some((_, files)) = ties.manifests.iter().find(|(known, _)| *known == hash) {
            return Ok(files.len() as u64);
        }
        ties.claims.push(self.claims.share(vec![hash]).await);
        let contents = self.contents.clone();
        let read = self.checked(move || read_manifest(&contents, hash)).await;
        let (manifest, size) = read.map_err(refuse)?;
        let files: Vec<ContentHash> = manifest.files().iter().map(|file| file.sha256).collect();
        ties.claims.push(self.claims.share(files.clone()).await);
        ties.named.push((hash, size));
        ties.named.extend(manifest.files().iter().map(|file| (file.sha256, file.size)));
        ties.manifests.push((hash, files));
        let contents = self.contents.clone();
        self.checked(move || count_images(&contents, hash, &manifest)).await.map_err(refuse)
    }

    /// Reads the header of the checkpoint that a job is to go on from, if it is to, and checks that it is that job's. It
    /// counts as used from now on.
    pub(crate) async fn resumed(
        &self,
        ties: &mut Ties,
        spec: &JobSpec,
    ) -> Result<Option<Resumed>, FieldError> {
        // A job without steps has no such option, and says nothing of it either.
        let Some(field) = spec.resume_option() else { return Ok(None) };
        let refuse = |problem: String| FieldError::new(format!("spec.{field}"), problem);
        let text = spec.resume_from();
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
        ties.claims.push(self.claims.share(vec![hash]).await);
        let contents = self.contents.clone();
        let read = self.checked(move || read_checkpoint(&contents, hash)).await;
        let (checkpoint, size) = read.map_err(refuse)?;
        ties.named.push((hash, size));
        checkpoint.about.check(spec).map_err(refuse)?;
        Ok(Some(checkpoint.resumed()))
    }

    /// Whether a checkpoint that is held is what it was as it came, all of it. One that is so large that this takes too long
    /// counts as whole: its rank finds out.
    pub(crate) async fn check_whole(&self, hash: ContentHash) -> Result<(), String> {
        let contents = self.contents.clone();
        let checking = self.checked(move || read_checkpoint_whole(&contents, hash));
        tokio::time::timeout(LONGEST_CHECK, checking).await.unwrap_or(Ok(()))
    }

    /// Runs a check that blocks.
    async fn checked<T: Send + 'static>(
        &self,
        check: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        blocking(check).await.unwrap_or_else(|_| Err("the check was interrupted".to_owned()))
    }
}

/// Runs work to its end, also where the call that asked for it is cancelled: what it holds it holds until then.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(work).await.unwrap_or(Err(Error::Interrupted("the work")))
}

/// Runs file I/O on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Interrupted("a file operation"))
}

/// The number of a manifest's images; or what of them is not here, in words. Blocks.
fn count_images(contents: &Contents, hash: ContentHash, manifest: &Manifest) -> Result<u64, String> {
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

/// Reads the header and no more, however large the state behind it is. That the content is whole was checked when it
/// came; whether its tensors are those that the header names, the ranks check. Blocks.
fn read_checkpoint(contents: &Contents, hash: ContentHash) -> Result<(CheckpointHeader, u64), String> {
    let mut range = find(contents, hash)?;
    let size = range.content_size;
    let checkpoint =
        CheckpointHeader::read(&mut range, size).map_err(|error| format!("{}: {error}", hash.uri()))?;
    contents.touch(&hash).map_err(|error| error.to_string())?;
    Ok((checkpoint, size))
}

/// Reads all of a checkpoint and keeps nothing of it. Blocks.
fn read_checkpoint_whole(contents: &Contents, hash: ContentHash) -> Result<(), String> {
    let range = find(contents, hash)?;
    let size = range.content_size;
    let read = OpenCheckpoint::new(Hashing::new(range), size).and_then(OpenCheckpoint::verify);
    let found = read.map_err(|error| format!("{}: {error}", hash.uri()))?.hash();
    if found == hash { Ok(()) } else { Err(format!("{}: its bytes have the hash {found}", hash.uri())) }
}

/// A whole content, to be read from its beginning. Blocks.
fn find(contents: &Contents, hash: ContentHash) -> Result<contents::Range, String> {
    contents.read(&hash, 0, None).map_err(|error| match error {
        contents::Error::NotFound(hash) => format!("{} is not uploaded yet", hash.uri()),
        other => other.to_string(),
    })
}

/// A content of at most `limit` bytes. Blocks.
fn read_whole(contents: &Contents, hash: ContentHash, limit: u64) -> Result<Vec<u8>, String> {
    let mut range = find(contents, hash)?;
    let size = range.content_size;
    if size > limit {
        return Err(format!("{} has {size} bytes; allowed: at most {limit}", hash.uri()));
    }
    range.next_chunk(usize::try_from(size).unwrap_or(0)).map_err(|error| error.to_string())
}

/// With its bytes. Blocks.
fn read_manifest(contents: &Contents, hash: ContentHash) -> Result<(Manifest, u64), String> {
    let json = read_whole(contents, hash, LARGEST_MANIFEST as u64)?;
    let manifest = Manifest::parse(&json).map_err(|error| error.to_string())?;
    Ok((manifest, json.len() as u64))
}
