//! What goes: files of jobs that are deleted, uploads that broke off, contents that nobody wants.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringtune_shared::ids::{ContentHash, Epoch, JobId};
use ringtune_shared::manifest::{LARGEST_MANIFEST, Manifest};
use tracing::info;

use super::{FailedRequest, References, blocking, to_its_end};
use crate::contents::{self, Contents};

/// Uploads that broke off, and contents that no job wants, are kept for so long after somebody asked for them.
const KEEP: Duration = Duration::from_secs(24 * 3600);
/// Contents that are looked at together: so many are held alone, and no job can be made of them meanwhile.
const PORTION: u32 = 256;

impl References {
    /// Takes a file off a job, and removes its content if nobody else has it.
    pub(in crate::grpc) async fn drop_artifact(
        self: &Arc<Self>,
        job: JobId,
        name: String,
        epoch: Option<Epoch>,
    ) -> Result<(), FailedRequest> {
        let this = self.clone();
        to_its_end(async move {
            if let Some(hash) = this.handle.drop_artifact(job, name, epoch).await? {
                this.let_go(&[hash], SystemTime::now()).await?;
            }
            Ok(())
        })
        .await
    }

    /// Forgets a job, and removes the files that were its alone.
    pub(in crate::grpc) async fn delete_job(self: &Arc<Self>, id: JobId) -> Result<(), FailedRequest> {
        let this = self.clone();
        to_its_end(async move {
            let free = this.handle.delete_job(id).await?;
            this.let_go(&free, SystemTime::now()).await?;
            Ok(())
        })
        .await
    }

    /// Removes uploads that broke off and contents that no job wants, once they are a day old.
    pub(in crate::grpc) async fn sweep(&self, now: SystemTime) -> Result<(), FailedRequest> {
        self.read_manifests().await?;
        let contents = self.contents.clone();
        let (dropped, old) = blocking(move || {
            Ok::<_, contents::Error>((contents.drop_abandoned(now, KEEP)?, contents.older(now, KEEP)?))
        })
        .await??;
        let removed = self.let_go(&old, now).await?;
        self.settle_all(now).await?;
        if dropped + removed > 0 {
            info!(uploads = dropped, contents = removed, "removed files that nobody wants");
        }
        Ok(())
    }

    /// Removes those of `candidates` that nobody wants, holds, or asked for in the last day. Returns how many.
    pub(super) async fn let_go(
        &self,
        candidates: &[ContentHash],
        now: SystemTime,
    ) -> Result<usize, FailedRequest> {
        let mut count = 0;
        for portion in candidates.chunks(PORTION as usize) {
            // What somebody holds just now is left to the sweep.
            let alone = self.claims.alone(portion);
            // Asked only now: a job that was stored before is counted, and none can come any more.
            let unwanted = self.handle.store().unwanted(alone.contents()).await?;
            let contents = self.contents.clone();
            let (_alone, removed) = blocking(move || {
                let removed = remove_old(&contents, unwanted, now);
                (alone, removed)
            })
            .await?;
            let removed = removed?;
            self.handle.store().forget_contents(&removed).await?;
            self.quotas.disown(&removed).await?;
            count += removed.len();
        }
        Ok(count)
    }

    /// Takes everything from accounts that is not on the disk any more, or is there for others alone.
    async fn settle_all(&self, now: SystemTime) -> Result<(), FailedRequest> {
        let mut after = None;
        loop {
            let portion = self.quotas.owned(after, PORTION).await?;
            let Some(last) = portion.last() else { return Ok(()) };
            after = Some(*last);
            self.settle(&portion, now).await?;
        }
    }

    /// Takes those of `contents` from accounts that are not on the disk, and those that nobody has asked for in the last day
    /// from owners whose jobs do not want them: they are there for somebody else's job.
    pub(in crate::grpc) async fn settle(
        &self,
        contents: &[ContentHash],
        now: SystemTime,
    ) -> Result<(), FailedRequest> {
        // Whoever holds one may be about to bring it here, or to make a job of it: the next sweep looks again.
        let alone = self.claims.alone(contents);
        // What no job wants goes from the disk, and then from accounts.
        let unwanted = self.handle.store().unwanted(alone.contents()).await?;
        let contents = self.contents.clone();
        let (_alone, sorted) = blocking(move || {
            let sorted = sort(&contents, alone.contents(), &unwanted, now);
            (alone, sorted)
        })
        .await?;
        let Sorted { absent, idle } = sorted?;
        self.quotas.disown(&absent).await?;
        Ok(self.quotas.disown_unwanted(&idle).await?)
    }

    /// Tells the store what manifests name that an older version did not tell it of.
    async fn read_manifests(&self) -> Result<(), FailedRequest> {
        loop {
            let unread = self.handle.store().unread_manifests(PORTION).await?;
            if unread.is_empty() {
                return Ok(());
            }
            for manifest in unread {
                let contents = self.contents.clone();
                let files = blocking(move || files_of(&contents, manifest)).await??;
                self.handle.store().put_manifest(manifest, &files).await?;
            }
        }
    }
}

/// Contents that may not be on the account of everybody who has them.
#[derive(Default)]
struct Sorted {
    /// Not even a part is here.
    absent: Vec<ContentHash>,
    /// Some job wants them, and nobody has asked for them in the last day.
    idle: Vec<ContentHash>,
}

/// Blocks.
fn sort(
    contents: &Contents,
    owned: &[ContentHash],
    unwanted: &[ContentHash],
    now: SystemTime,
) -> Result<Sorted, contents::Error> {
    let mut sorted = Sorted::default();
    for hash in owned {
        if contents.is_absent(hash)? {
            sorted.absent.push(*hash);
        } else if !unwanted.contains(hash) && contents.is_older(hash, now, KEEP)? {
            sorted.idle.push(*hash);
        }
    }
    Ok(sorted)
}

/// Blocks.
fn remove_old(
    contents: &Contents,
    unwanted: Vec<ContentHash>,
    now: SystemTime,
) -> Result<Vec<ContentHash>, contents::Error> {
    let mut removed = Vec::with_capacity(unwanted.len());
    for hash in unwanted {
        if contents.is_older(&hash, now, KEEP)? {
            contents.remove(&hash)?;
            removed.push(hash);
        }
    }
    Ok(removed)
}

/// What a manifest names; nothing where it is not here or is not a manifest. Blocks.
fn files_of(contents: &Contents, manifest: ContentHash) -> Result<Vec<ContentHash>, contents::Error> {
    let json = match contents.read(&manifest, 0, None) {
        Err(contents::Error::NotFound(_)) => return Ok(Vec::new()),
        range => range?.next_chunk(LARGEST_MANIFEST)?,
    };
    let files =
        Manifest::parse(&json).map(|manifest| manifest.files().iter().map(|file| file.sha256).collect());
    Ok(files.unwrap_or_default())
}
