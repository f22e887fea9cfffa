//! The job's pictures on this machine: fetched by content, or a folder that is there already.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use ringtune_shared::{
    captions::{caption_beside, caption_file_name},
    ids::{CONTENT_URI_PREFIX, ContentHash},
    job::kinds::textual_inversion::TextualInversionSpec,
    manifest::{LARGEST_MANIFEST, Manifest, ManifestFile},
};

use super::{
    ArtifactClient, RankError, artifacts::hash_file_blocking, cache::ContentCache, journal::Journal,
};
use crate::{
    data::images::{self, ImageFile, ImageSet},
    session::{Progress, ProgressStage, RankEvent},
};

/// The pictures of a concept, ready to be read.
#[derive(Clone, Debug)]
pub(super) struct Pictures {
    /// At least one; those of each folder sorted by name.
    pub(super) files: Vec<ImageFile>,
    /// How often each of them is shown in an epoch.
    pub(super) repeats: Vec<u32>,
    /// What each of them shows, in words; empty where there are none, or none are used.
    pub(super) captions: Vec<String>,
    /// Hash of their manifest: equal folders have equal ones, wherever they are.
    pub(super) hash: ContentHash,
}

impl Pictures {
    /// The pictures of one folder.
    fn new(files: Vec<ImageFile>, captions: Vec<String>, hash: ContentHash) -> Self {
        Self { repeats: vec![1; files.len()], files, captions, hash }
    }

    /// The pictures of several folders, each with how often its pictures are shown. One that is shown once is just
    /// itself; else the hash is that of the folders' hashes and repeats, a line each.
    fn joined(folders: Vec<(Self, u32)>) -> Self {
        let lines: String =
            folders.iter().map(|(pictures, repeats)| format!("{} {repeats}\n", pictures.hash)).collect();
        let mut hash = ContentHash::of(lines.as_bytes());
        if let [(only, 1)] = folders.as_slice() {
            hash = only.hash;
        }
        let mut all = Self::new(Vec::new(), Vec::new(), hash);
        for (pictures, repeats) in folders {
            all.repeats.extend(pictures.files.iter().map(|_| repeats));
            all.files.extend(pictures.files);
            all.captions.extend(pictures.captions);
        }
        all
    }
}

/// Brings the pictures of all concepts here. Adds what must stay in the cache, which is not trimmed, to `needed`.
pub(super) async fn materialise(
    job: &TextualInversionSpec,
    client: &ArtifactClient,
    cache: &ContentCache,
    journal: &Journal,
    needed: &mut Vec<ContentHash>,
) -> Result<Vec<Pictures>, RankError> {
    let mut all = Vec::new();
    for (index, concept) in job.concepts().into_iter().enumerate() {
        let captions = concept.uses_captions();
        let mut folders = Vec::new();
        for (key, folder) in concept.folders() {
            let field = job.concept_field(index, &key);
            let brought = if folder.images.starts_with(CONTENT_URI_PREFIX) {
                fetch(&folder.images, client, cache, journal, needed).await
            } else {
                list(&field, &folder.images, captions, journal).await
            };
            let pictures = brought.map_err(|error| error.in_field(&field))?;
            if captions {
                warn_of_missing_captions(&field, &pictures, journal).await;
            }
            folders.push((pictures, folder.repeats));
        }
        all.push(Pictures::joined(folders));
    }
    Ok(all)
}

async fn warn_of_missing_captions(field: &str, pictures: &Pictures, journal: &Journal) {
    let missing = pictures.captions.iter().filter(|caption| caption.is_empty()).count();
    if missing > 0 {
        let count = pictures.files.len();
        journal.warn(format!("{field}: {missing} of {count} pictures have no caption")).await;
    }
}

async fn list(field: &str, source: &str, captions: bool, journal: &Journal) -> Result<Pictures, RankError> {
    let folder = PathBuf::from(source.strip_prefix("file://").unwrap_or(source));
    let (pictures, skipped) = tokio::task::spawn_blocking(move || read_folder(&folder, captions)).await??;
    if !skipped.is_empty() {
        let shown = skipped.iter().take(20).cloned().collect::<Vec<_>>().join(", ");
        let more = if skipped.len() > 20 { ", …" } else { "" };
        journal.warn(format!("{field}: {} skipped, no pictures: {shown}{more}", skipped.len())).await;
    }
    Ok(pictures)
}

fn read_folder(folder: &Path, captions: bool) -> Result<(Pictures, Vec<String>), RankError> {
    let ImageSet { images, mut skipped } = images::scan(folder)?;
    let mut entries = Vec::with_capacity(images.len());
    for image in &images {
        let (sha256, size) = hash_file_blocking(&image.path)?;
        let caption = if captions { caption_beside(folder, &image.name)? } else { None };
        entries.push(ManifestFile { name: image.name.clone(), sha256, size, caption });
    }
    if captions {
        let used: HashSet<String> =
            images.iter().filter_map(|image| caption_file_name(&image.name)).collect();
        skipped.retain(|name| !used.contains(name));
    }
    let words = entries.iter().map(|entry| entry.caption.clone().unwrap_or_default()).collect();
    let hash = ContentHash::of(&Manifest::new(entries)?.to_json()?);
    Ok((Pictures::new(images, words, hash), skipped))
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
        journal
            .event(RankEvent::Progress(Progress { stage: ProgressStage::Fetch, done: done as u64, total }))
            .await;
        one_file(file.sha256, file.size, client, cache).await?;
    }
    journal.event(RankEvent::Progress(Progress { stage: ProgressStage::Fetch, done: total, total })).await;
    let files = manifest
        .files()
        .iter()
        .map(|file| ImageFile { name: file.name.clone(), path: cache.path(file.sha256) })
        .collect();
    needed.extend(manifest.files().iter().map(|file| file.sha256).chain([hash]));
    let captions = manifest.files().iter().map(|file| file.caption.clone().unwrap_or_default()).collect();
    Ok(Pictures::new(files, captions, hash))
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
