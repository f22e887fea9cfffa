//! The job's pictures on this machine: fetched by content, or a folder that is there already.

use std::collections::BTreeSet;

use ringtune_shared::{
    captions::{CaptionFileError, caption_file_name, caption_in},
    ids::{CONTENT_URI_PREFIX, ContentHash},
    job::PathUse,
    manifest::{LARGEST_MANIFEST, Manifest, ManifestFile},
};
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::{
    access::{Access, ConfinedPath},
    contents::{ArtifactClient, ContentCache, hash_opened, one_file},
    data::{
        self,
        images::{self, ImageFile, ImageSet, ListedImage},
    },
    journal::Journal,
    session::{Progress, ProgressStage, RankEvent},
    while_wanted,
};

/// Pictures that a job wants.
#[derive(Clone, Debug)]
pub(crate) struct PictureFolder {
    /// The job's field that names them.
    pub(crate) field: String,
    /// A folder, or the content URI of a manifest.
    pub(crate) place: String,
    /// The captions beside them are used.
    pub(crate) captions: bool,
    /// Repeats of each in a pass over all pictures.
    pub(crate) repeats: u32,
}

/// The pictures that belong together, ready to be read.
#[derive(Clone, Debug)]
pub(crate) struct Pictures {
    /// At least one; those of each folder sorted by name.
    pub(crate) files: Vec<ListedImage>,
    /// Repeats of each in a pass.
    pub(crate) repeats: Vec<u32>,
    /// Captions; empty if there are none, or none are used.
    pub(crate) captions: Vec<String>,
    /// Hash of their manifest: equal folders have equal ones, wherever they are.
    pub(crate) hash: ContentHash,
}

impl Pictures {
    /// The pictures of one folder.
    fn new(files: Vec<ListedImage>, captions: Vec<String>, hash: ContentHash) -> Self {
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
pub(crate) async fn materialise(
    wanted: Vec<Vec<PictureFolder>>,
    access: &Access,
    client: &ArtifactClient,
    cache: &ContentCache,
    journal: &Journal,
    needed: &mut Vec<ContentHash>,
) -> Result<Vec<Pictures>, Error> {
    let mut all = Vec::new();
    for of_one in wanted {
        let mut folders = Vec::new();
        for PictureFolder { field, place, captions, repeats } in of_one {
            let brought = if place.starts_with(CONTENT_URI_PREFIX) {
                fetch(&place, client, cache, journal, needed).await
            } else {
                list(&field, &place, captions, access, journal).await
            };
            let pictures = brought.map_err(|error| error.in_field(&field))?;
            if captions {
                warn_of_missing_captions(&field, &pictures, journal).await;
            }
            folders.push((pictures, repeats));
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

async fn list(
    field: &str,
    source: &str,
    captions: bool,
    access: &Access,
    journal: &Journal,
) -> Result<Pictures, Error> {
    let (access, named, source) = (access.clone(), field.to_owned(), source.to_owned());
    let read = move |still: &CancellationToken| {
        read_folder(&access.place(PathUse::Pictures, &named, &source)?, captions, still)
    };
    let (pictures, skipped) = while_wanted::spawn_blocking(read).await??;
    if !skipped.is_empty() {
        let shown = skipped.iter().take(20).cloned().collect::<Vec<_>>().join(", ");
        let more = if skipped.len() > 20 { ", …" } else { "" };
        journal.warn(format!("{field}: {} skipped, no pictures: {shown}{more}", skipped.len())).await;
    }
    Ok(pictures)
}

fn read_folder(
    folder: &ConfinedPath,
    captions: bool,
    still: &CancellationToken,
) -> Result<(Pictures, Vec<String>), Error> {
    let ImageSet { images, mut skipped } = images::scan(folder)?;
    let mut entries = Vec::with_capacity(images.len());
    let mut listed = Vec::with_capacity(images.len());
    for image in images {
        let opened = image.place.open();
        let opened = opened.map_err(|source| data::Error::ReadImage { name: image.name.clone(), source })?;
        let (sha256, size) = hash_opened(opened, image.place.shown(), still)?;
        let caption = if captions { caption_beside(folder, &image.name)? } else { None };
        entries.push(ManifestFile { name: image.name.clone(), sha256, size, caption });
        listed.push(ListedImage { file: image, sha256 });
    }
    if captions {
        let used: BTreeSet<String> =
            listed.iter().filter_map(|image| caption_file_name(&image.file.name)).collect();
        skipped.retain(|name| !used.contains(name));
    }
    let words = entries.iter().map(|entry| entry.caption.clone().unwrap_or_default()).collect();
    let hash = ContentHash::of(&Manifest::new(entries)?.to_json()?);
    Ok((Pictures::new(listed, words, hash), skipped))
}

/// Reads the caption file of the picture `image`; None if there is none.
fn caption_beside(folder: &ConfinedPath, image: &str) -> Result<Option<String>, CaptionFileError> {
    let Some(name) = caption_file_name(image) else { return Ok(None) };
    let file = folder.join(name);
    caption_in(file.shown(), file.open())
}

/// Adds the contents that must stay in the cache to `needed`.
async fn fetch(
    uri: &str,
    client: &ArtifactClient,
    cache: &ContentCache,
    journal: &Journal,
    needed: &mut Vec<ContentHash>,
) -> Result<Pictures, Error> {
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
        .map(|ManifestFile { name, sha256, .. }| {
            let file = ImageFile { name: name.clone(), place: ConfinedPath::at(cache.path(*sha256)) };
            ListedImage { file, sha256: *sha256 }
        })
        .collect();
    needed.extend(manifest.files().iter().map(|file| file.sha256).chain([hash]));
    let captions = manifest.files().iter().map(|file| file.caption.clone().unwrap_or_default()).collect();
    Ok(Pictures::new(files, captions, hash))
}
