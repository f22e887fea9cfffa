//! The job's pictures on this machine: fetched by content, or a folder that is there already.

use std::path::PathBuf;

use ringtune_shared::{
    ids::{CONTENT_URI_PREFIX, ContentHash},
    manifest::{LARGEST_MANIFEST, Manifest, ManifestFile},
};

use super::{
    ArtifactClient, RankError, artifacts::hash_file_blocking, cache::ContentCache, journal::Journal,
};
use crate::{
    data::images::{self, ImageFile},
    session::{Progress, RankEvent},
};

/// Pictures, ready to be read.
#[derive(Clone, Debug)]
pub(super) struct Pictures {
    /// At least one, sorted by name.
    pub(super) files: Vec<ImageFile>,
    /// Hash of their manifest: equal folders have equal ones, wherever they are.
    pub(super) hash: ContentHash,
}

/// Brings the pictures of all `sources` here, each with the name of its field ("data.images").
pub(super) async fn materialise(
    sources: &[(String, String)],
    client: &ArtifactClient,
    cache: &ContentCache,
    journal: &Journal,
) -> Result<Vec<Pictures>, RankError> {
    let mut all = Vec::with_capacity(sources.len());
    let mut needed = Vec::new();
    for (field, source) in sources {
        let brought = if source.starts_with(CONTENT_URI_PREFIX) {
            fetch(source, client, cache, journal, &mut needed).await
        } else {
            list(field, source, journal).await
        };
        all.push(brought.map_err(|error| error.in_field(field))?);
    }
    let cache = cache.clone();
    // Not before all are there: no source is to push out another's.
    tokio::task::spawn_blocking(move || cache.trim(&needed)).await?;
    Ok(all)
}

async fn list(field: &str, source: &str, journal: &Journal) -> Result<Pictures, RankError> {
    let folder = PathBuf::from(source.strip_prefix("file://").unwrap_or(source));
    let (pictures, skipped) = tokio::task::spawn_blocking(move || read_folder(&folder)).await??;
    if !skipped.is_empty() {
        let shown = skipped.iter().take(20).cloned().collect::<Vec<_>>().join(", ");
        let more = if skipped.len() > 20 { ", …" } else { "" };
        journal.warn(format!("{field}: {} skipped, no pictures: {shown}{more}", skipped.len())).await;
    }
    Ok(pictures)
}

fn read_folder(folder: &std::path::Path) -> Result<(Pictures, Vec<String>), RankError> {
    let set = images::scan(folder)?;
    let mut entries = Vec::with_capacity(set.images.len());
    for image in &set.images {
        let (sha256, size) = hash_file_blocking(&image.path)?;
        entries.push(ManifestFile { name: image.name.clone(), sha256, size });
    }
    let hash = ContentHash::of(&Manifest::new(entries)?.to_json()?);
    Ok((Pictures { files: set.images, hash }, set.skipped))
}

/// Adds the contents that must stay in the cache to `needed`.
async fn fetch(
    uri: &str,
    client: &ArtifactClient,
    cache: &ContentCache,
    journal: &Journal,
    needed: &mut Vec<ContentHash>,
) -> Result<Pictures, RankError> {
    let hash = ContentHash::from_uri(uri)?;
    let manifest = one_file(hash, LARGEST_MANIFEST as u64, client, cache).await?;
    let manifest = Manifest::parse(&manifest)?;
    let total = manifest.files().len() as u64;
    for (done, file) in manifest.files().iter().enumerate() {
        journal.event(RankEvent::Progress(Progress { stage: "fetch", done: done as u64, total })).await;
        one_file(file.sha256, file.size, client, cache).await?;
    }
    journal.event(RankEvent::Progress(Progress { stage: "fetch", done: total, total })).await;
    let files = manifest
        .files()
        .iter()
        .map(|file| ImageFile { name: file.name.clone(), path: cache.path(file.sha256) })
        .collect();
    needed.extend(manifest.files().iter().map(|file| file.sha256).chain([hash]));
    Ok(Pictures { files, hash })
}

/// A content of at most `limit` bytes, from the cache or else from the coordinator.
pub(super) async fn one_file(
    hash: ContentHash,
    limit: u64,
    client: &ArtifactClient,
    cache: &ContentCache,
) -> Result<Vec<u8>, RankError> {
    let there = cache.clone();
    if let Some(content) = tokio::task::spawn_blocking(move || there.read(hash)).await? {
        return Ok(content);
    }
    let content = client.download(hash, limit).await?;
    let there = cache.clone();
    tokio::task::spawn_blocking(move || there.write(hash, &content).map(|()| content)).await?
}
