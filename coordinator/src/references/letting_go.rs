//! What goes: files of jobs that are deleted, uploads that broke off, contents that nobody wants.
//!
//! All of it goes into the trash of the contents first, but what a rank replaced.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringtune_shared::ids::{ContentHash, Epoch, JobId};
use ringtune_shared::manifest::{LARGEST_MANIFEST, Manifest};
use tracing::{info, warn};

use super::{Error, References, blocking, to_its_end};
use crate::contents::{self, Contents, LetGo};

/// Uploads that broke off, and contents that no job wants, are kept for so long after somebody asked for them.
const KEEP: Duration = Duration::from_secs(24 * 3600);
/// What becomes of contents that nobody wants.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// They are kept in the trash.
    Trash(LetGo),
    /// The job that had them replaced them: a recovery point every minute, checkpoints beyond the number that it keeps.
    ForGood,
}

/// Contents that are looked at together: so many are held alone, and no job can be made of them meanwhile.
const PORTION: u32 = 256;

impl References {
    /// Takes a file off a job, and removes its content if nobody else has it.
    pub(crate) async fn drop_artifact(
        self: &Arc<Self>,
        job: JobId,
        name: String,
        epoch: Option<Epoch>,
    ) -> Result<(), Error> {
        let this = self.clone();
        to_its_end(async move {
            // A rank names the epoch of its ring.
            let way = if epoch.is_some() { Way::ForGood } else { Way::Trash(LetGo::Deleted) };
            if let Some(hash) = this.handle.drop_artifact(job, name, epoch).await? {
                this.let_go(&[hash], way, SystemTime::now()).await?;
            }
            Ok(())
        })
        .await
    }

    /// Forgets a job, and removes the files that were its alone.
    pub(crate) async fn delete_job(self: &Arc<Self>, id: JobId) -> Result<(), Error> {
        let this = self.clone();
        to_its_end(async move {
            let free = this.handle.delete_job(id).await?;
            this.let_go(&free, Way::Trash(LetGo::Deleted), SystemTime::now()).await?;
            Ok(())
        })
        .await
    }

    /// Drops uploads that broke off, and moves contents that no job wants into the trash, once they are a day old.
    pub(crate) async fn sweep(&self, now: SystemTime) -> Result<(), Error> {
        self.read_manifests().await?;
        let contents = self.contents.clone();
        let (dropped, old) = blocking(move || {
            Ok::<_, contents::Error>((contents.drop_abandoned(now, KEEP)?, contents.older(now, KEEP)?))
        })
        .await??;
        let unwanted = self.let_go(&old, Way::Trash(LetGo::Unwanted), now).await?;
        self.settle_all(now).await?;
        if dropped > 0 {
            info!(uploads = dropped, "removed what uploads left that broke off a day ago");
        }
        if unwanted > 0 {
            info!(contents = unwanted, "moved files that no job wants into the trash");
        }
        Ok(())
    }

    /// Removes for good what has been in the trash for its days.
    pub(crate) async fn empty_trash(&self, now: SystemTime) -> Result<(), Error> {
        let contents = self.contents.clone();
        let (removed, bytes) = blocking(move || contents.empty_trash(now)).await??;
        if removed > 0 {
            info!(contents = removed, bytes, "emptied the trash of files whose days were over");
        }
        Ok(())
    }

    /// Lets go of those of `candidates` that nobody wants, holds, or asked for in the last day. Returns how many.
    pub(super) async fn let_go(
        &self,
        candidates: &[ContentHash],
        way: Way,
        now: SystemTime,
    ) -> Result<usize, Error> {
        let mut count = 0;
        for portion in candidates.chunks(PORTION as usize) {
            // What somebody holds just now is left to the sweep.
            let alone = self.claims.alone(portion);
            // Asked only now: a job that was stored before is counted, and none can come any more.
            let unwanted = self.handle.store().unwanted(alone.contents()).await?;
            let contents = self.contents.clone();
            let (_alone, removed) = blocking(move || {
                let removed = remove_old(&contents, unwanted, way, now);
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
    async fn settle_all(&self, now: SystemTime) -> Result<(), Error> {
        let mut after = None;
        loop {
            let portion = self.quotas.owned(after, PORTION).await?;
            let Some(last) = portion.last() else { return Ok(()) };
            after = Some(*last);
            self.settle(&portion, now).await?;
        }
    }

    /// Takes those of `contents` from accounts that are not on the disk and that no job wants, and those that nobody has asked
    /// for in the last day from owners whose jobs do not want them: they are there for somebody else's job. What a job wants
    /// and does not have may come back, with the disk that it is on.
    pub(crate) async fn settle(&self, contents: &[ContentHash], now: SystemTime) -> Result<(), Error> {
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
    async fn read_manifests(&self) -> Result<(), Error> {
        let mut after = None;
        loop {
            let unread = self.handle.store().unread_manifests(after, PORTION).await?;
            let Some(last) = unread.last() else { return Ok(()) };
            after = Some(*last);
            for manifest in unread {
                let contents = self.contents.clone();
                match blocking(move || files_of(&contents, manifest)).await?? {
                    Some(files) => self.handle.store().put_manifest(manifest, &files).await?,
                    // What it names is not known, and so nothing is let go of, until it is back or its jobs are deleted.
                    None => {
                        warn!(%manifest, "a job's list of images is missing: no file is let go of meanwhile")
                    }
                }
            }
        }
    }
}

/// Contents that may not be on the account of everybody who has them.
#[derive(Default)]
struct Sorted {
    /// Not even a part is here, and no job wants them.
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
        let wanted = !unwanted.contains(hash);
        if !wanted && contents.is_absent(hash)? {
            sorted.absent.push(*hash);
        } else if wanted && contents.is_older(hash, now, KEEP)? {
            sorted.idle.push(*hash);
        }
    }
    Ok(sorted)
}

/// Blocks.
fn remove_old(
    contents: &Contents,
    unwanted: Vec<ContentHash>,
    way: Way,
    now: SystemTime,
) -> Result<Vec<ContentHash>, contents::Error> {
    let mut old = Vec::with_capacity(unwanted.len());
    for hash in unwanted {
        if contents.is_older(&hash, now, KEEP)? {
            old.push(hash);
        }
    }
    match way {
        Way::ForGood => old.iter().try_for_each(|hash| contents.remove(hash))?,
        Way::Trash(why) => drop(contents.let_go(&old, why, now)?),
    }
    Ok(old)
}

/// What a manifest names, nothing where it is not a manifest; none: it is not here. Blocks.
fn files_of(contents: &Contents, manifest: ContentHash) -> Result<Option<Vec<ContentHash>>, contents::Error> {
    let json = match contents.read(&manifest, 0, None) {
        Err(contents::Error::NotFound(_)) => return Ok(None),
        range => range?.next_chunk(LARGEST_MANIFEST)?,
    };
    let files =
        Manifest::parse(&json).map(|manifest| manifest.files().iter().map(|file| file.sha256).collect());
    Ok(Some(files.unwrap_or_default()))
}
