//! Repositories of a model hub.
//!
//! Source of the routes, the variables and the cache's layout: Python's huggingface_hub (`file_download.py`,
//! `constants.py`). The crate hf-hub does not go on with a partial file, checks no content and knows no offline mode.
//!
//! Invariant: only the hub's own address ever gets the hub's token.

mod cache;
mod client;
mod settings;

use std::path::{Path, PathBuf};

use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, future::BoxFuture};
use ringtune_shared::job::HubModel;

use crate::{
    Environment, Error, Patience, ProgressSender,
    digest::Expected,
    lock::{FileLock, Mode},
    model_cache::check_room,
    progress::FileProgress,
    s3::Needed,
    transfer::{self, Download},
    web::with_retries,
};
use cache::RepositoryCache;
use client::{FileFacts, HubClient, Listing, RemoteFile};
use settings::HubSettings;
pub(crate) use settings::endpoint_of;

/// A model is not larger: SD 2's whole repository has 30 GB.
const LARGEST_MODEL: u64 = 256 << 30;
/// Questions about files that are asked at the same time.
const QUESTIONS: usize = 6;

/// A hub and its cache.
#[derive(Clone, Debug)]
pub(crate) struct Hub {
    settings: HubSettings,
    client: HubClient,
    patience: Patience,
}

/// A commit, in the cache.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) folder: PathBuf,
    pub(crate) commit: String,
    pub(crate) remarks: Vec<String>,
}

impl Hub {
    /// Reads the variables. Blocks on one small file.
    pub(crate) fn new(environment: &Environment, patience: Patience) -> Result<Self, Error> {
        let settings = HubSettings::of(environment)?;
        Ok(Self { client: HubClient::new(settings.clone())?, settings, patience })
    }

    /// The folder of the cache.
    pub(crate) fn cache(&self) -> &Path {
        &self.settings.cache
    }

    /// Brings the needed files of a revision into the cache.
    pub(crate) async fn fetch(
        &self,
        model: &HubModel,
        needed: Needed<'_>,
        progress: &ProgressSender,
    ) -> Result<Snapshot, Error> {
        if self.settings.offline {
            let offline = |problem| Error::Offline {
                place: model.to_string(),
                cache: self.settings.cache.clone(),
                problem,
            };
            return self.cached(model, needed).await?.map_err(offline);
        }
        let (place, list) = (model.to_string(), || self.client.list(model));
        let listing = match with_retries(&self.patience, &place, progress, list).await {
            Ok(listing) => listing,
            // Cached files are as good, as long as all ranks have the same, which they compare.
            Err(error) if error.is_transient() => {
                let Ok(mut snapshot) = self.cached(model, needed).await? else { return Err(error) };
                snapshot.remarks.push(format!("{error}: using the commit {} of the cache", snapshot.commit));
                return Ok(snapshot);
            }
            Err(error) => return Err(error),
        };
        self.fetch_listed(model, needed, &listing, progress).await
    }

    async fn fetch_listed(
        &self,
        model: &HubModel,
        needed: Needed<'_>,
        listing: &Listing,
        progress: &ProgressSender,
    ) -> Result<Snapshot, Error> {
        // 1. What is needed, and how large it is.
        let unsuitable = |problem| Error::Unsuitable { place: model.to_string(), problem };
        let names = needed(&listing.files).map_err(unsuitable)?;
        let cache = RepositoryCache::new(&self.settings.cache, model);
        let remote = |name| RemoteFile { client: &self.client, model, commit: &listing.commit, name };
        // Boxed: what a closure returns by itself is not Send for all lifetimes (rust-lang/rust#102211).
        let questions: Vec<BoxFuture<'_, Result<(&String, FileFacts), Error>>> =
            names.iter().map(|name| self.ask(remote(name), name, progress).boxed()).collect();
        let files: Vec<(&String, FileFacts)> =
            futures::stream::iter(questions).buffered(QUESTIONS).try_collect().await?;
        let total = total_size(model, &files)?;
        let contents = files.iter().map(|(_, facts)| (facts.etag.clone(), facts.size)).collect();
        let (asked, root, place) = (cache.clone(), self.settings.cache.clone(), model.to_string());
        let checking = move || check_room(&root, &place, asked.missing(contents));
        ringtune_shared::tasks::spawn_blocking(checking).await??;
        // 2. One file after the other: the small ones come first.
        let mut done = 0;
        for (name, facts) in &files {
            let part = FileProgress::new(progress, done, total);
            self.fetch_file(&cache, &remote(name), facts, &part).await?;
            let (cache, commit) = (cache.clone(), listing.commit.clone());
            let (name, etag) = ((*name).clone(), facts.etag.clone());
            ringtune_shared::tasks::spawn_blocking(move || cache.link(&commit, &name, &etag)).await??;
            done += facts.size;
            progress.set(done, total);
        }
        // 3. What the revision is, for offline use.
        let (folder, commit) = (cache.snapshot(&listing.commit), listing.commit.clone());
        let (revision, named) = (model.revision.clone(), commit.clone());
        ringtune_shared::tasks::spawn_blocking(move || cache.set_commit_of(&revision, &named)).await??;
        Ok(Snapshot { folder, commit, remarks: Vec::new() })
    }

    async fn ask<'a>(
        &self,
        file: RemoteFile<'_>,
        name: &'a String,
        progress: &ProgressSender,
    ) -> Result<(&'a String, FileFacts), Error> {
        let facts = with_retries(&self.patience, name, progress, || file.facts()).await?;
        Ok((name, facts))
    }

    async fn fetch_file(
        &self,
        cache: &RepositoryCache,
        file: &RemoteFile<'_>,
        facts: &FileFacts,
        progress: &FileProgress,
    ) -> Result<(), Error> {
        let (blob, partial) = (cache.blob(&facts.etag), cache.partial(&facts.etag));
        if is_whole(&blob, facts).await {
            return Ok(());
        }
        let waiting = |bytes| progress.set(bytes);
        let _lock = FileLock::take(&cache.lock(&facts.etag), Mode::Exclusive, &partial, waiting).await?;
        if is_whole(&blob, facts).await {
            return Ok(());
        }
        let wanted = Download {
            what: format!("{}: {}", file.model, file.name),
            size: facts.size,
            expected: Expected::of_hub_etag(&facts.etag),
            partial,
            target: blob,
        };
        transfer::download(file, &wanted, &self.patience, progress).await
    }

    /// Looks the model up in the cache, offline; else the missing files.
    async fn cached(&self, model: &HubModel, needed: Needed<'_>) -> Result<Result<Snapshot, String>, Error> {
        let (cache, model) = (RepositoryCache::new(&self.settings.cache, model), model.clone());
        let look = move || {
            let commit = cache
                .commit_of(&model.revision)
                .ok_or_else(|| format!("has no revision {:?} of it", model.revision))?;
            let files = cache.files(&commit).map_err(|_| format!("has no commit {commit} of it"))?;
            Ok((files, Snapshot { folder: cache.snapshot(&commit), commit, remarks: Vec::new() }))
        };
        let found: Result<_, String> = ringtune_shared::tasks::spawn_blocking(look).await?;
        Ok(found.and_then(|(files, snapshot)| match needed(&files) {
            Ok(_) => Ok(snapshot),
            Err(problem) => Err(format!("has not all of its commit {}: it {problem}", snapshot.commit)),
        }))
    }
}

/// A content that was cut short by a full disk, say, is fetched again.
async fn is_whole(blob: &Path, facts: &FileFacts) -> bool {
    tokio::fs::metadata(blob).await.is_ok_and(|about| about.len() == facts.size)
}

fn total_size(model: &HubModel, files: &[(&String, FileFacts)]) -> Result<u64, Error> {
    let total = files.iter().map(|(_, facts)| facts.size).fold(0, u64::saturating_add);
    if total <= LARGEST_MODEL {
        return Ok(total);
    }
    let problem = format!("its files have {total} bytes; allowed: {LARGEST_MODEL}");
    Err(Error::TooLarge { what: model.to_string(), problem })
}
