//! The job's pictures on this machine: fetched by content, or a folder that is there already.

mod source;

use std::sync::Arc;

use ringtune_shared::{
    ids::{CONTENT_URI_PREFIX, ContentHash},
    job::PathUse,
    manifest::{LARGEST_MANIFEST, Manifest, ManifestFile},
};
use ringtune_sources::LocalModel;
use ringtune_tables::captions::{FolderCaptions, caption_file_names};
use tokio_util::sync::CancellationToken;

use self::source::Source;
use super::Error;
use crate::{
    access::{Access, ConfinedPath},
    contents::{ArtifactClient, ContentCache, hash_opened, one_file},
    data::{
        self, DrawnSamples,
        images::{self, ImageFile, ImageSet, ListedImage},
    },
    journal::Journal,
    rank::Context,
    session::{Progress, ProgressStage, RankEvent},
    while_wanted,
};

/// Pictures that a job wants.
#[derive(Clone, Debug)]
pub(crate) struct PictureFolder {
    /// The job's field that names them.
    pub(crate) field: String,
    /// A folder, or the content URI of a manifest; or a source.
    pub(crate) place: String,
    /// What it names.
    pub(crate) from: PicturesFrom,
    /// The column of their captions, where these are used.
    pub(crate) captions: Option<String>,
    /// Repeats of each in a pass over all pictures.
    pub(crate) repeats: u32,
}

/// What has the pictures that a job wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PicturesFrom {
    /// A folder, which may be uploaded.
    Folder,
    /// A source, which is never uploaded.
    Source,
    /// Nothing: they are drawn.
    Drawn(DrawnSamples),
}

/// The pictures that belong together, ready to be read.
#[derive(Clone, Debug)]
pub(crate) struct Pictures {
    /// At least one; those of each folder sorted by name.
    pub(crate) files: Vec<ListedImage>,
    /// Repeats of each in a pass.
    pub(crate) repeats: Vec<u32>,
    /// The captions of each; empty if there are none, or none are used.
    pub(crate) captions: Vec<Vec<String>>,
    /// Hash of their manifest: equal folders have equal ones, wherever they are.
    pub(crate) hash: ContentHash,
    /// What was fetched for them: not thrown out as long as this is held.
    pub(crate) held: Vec<Arc<LocalModel>>,
}

impl Pictures {
    /// The pictures of one folder.
    pub(super) fn new(files: Vec<ListedImage>, captions: Vec<Vec<String>>, hash: ContentHash) -> Self {
        Self { repeats: vec![1; files.len()], files, captions, hash, held: Vec::new() }
    }

    /// Leaves the others out.
    pub(crate) fn keep_first(&mut self, count: usize) {
        self.files.truncate(count);
        self.repeats.truncate(count);
        self.captions.truncate(count);
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
            all.held.extend(pictures.held);
        }
        all
    }
}

/// Brings the pictures of all concepts here. Adds what must stay in the cache, which is not trimmed, to `needed`.
pub(crate) async fn materialise(
    wanted: Vec<Vec<PictureFolder>>,
    context: &Context,
    journal: &Journal,
    needed: &mut Vec<ContentHash>,
) -> Result<Vec<Pictures>, Error> {
    let Context { access, artifacts, cache, models, .. } = context;
    let mut all = Vec::new();
    for of_one in wanted {
        let mut folders = Vec::new();
        for PictureFolder { field, place, from, captions, repeats } in of_one {
            let brought = if let PicturesFrom::Drawn(samples) = from {
                let files: Vec<ListedImage> = samples.pictures().collect();
                let captions = vec![Vec::new(); files.len()];
                Ok(Pictures::new(files, captions, samples.hash()))
            } else if from == PicturesFrom::Source {
                let source = Source { field: &field, place: &place, captions: captions.as_deref() };
                source.bring(access, models, journal).await
            } else if place.starts_with(CONTENT_URI_PREFIX) {
                fetch(&place, artifacts, cache, journal, needed).await
            } else {
                list(&field, &place, captions.as_deref(), access, journal).await
            };
            let pictures = brought.map_err(|error| error.in_field(&field))?;
            if captions.is_some() {
                warn_of_missing_captions(&field, &pictures, journal).await;
            }
            folders.push((pictures, repeats));
        }
        all.push(Pictures::joined(folders));
    }
    Ok(all)
}

async fn warn_of_missing_captions(field: &str, pictures: &Pictures, journal: &Journal) {
    let missing = pictures.captions.iter().filter(|captions| captions.is_empty()).count();
    if missing > 0 {
        let count = pictures.files.len();
        journal.warn(format!("{field}: {missing} of {count} pictures have no caption")).await;
    }
}

async fn list(
    field: &str,
    source: &str,
    captions: Option<&str>,
    access: &Access,
    journal: &Journal,
) -> Result<Pictures, Error> {
    let (access, named, source) = (access.clone(), field.to_owned(), source.to_owned());
    let place = move || access.place(PathUse::Pictures, &named, &source);
    list_at(field, ringtune_shared::tasks::spawn_blocking(place).await??, captions, journal).await
}

/// Lists the pictures of a folder.
pub(super) async fn list_at(
    field: &str,
    folder: ConfinedPath,
    captions: Option<&str>,
    journal: &Journal,
) -> Result<Pictures, Error> {
    let captions = captions.map(str::to_owned);
    let read = move |still: &CancellationToken| read_folder(&folder, captions.as_deref(), still);
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
    captions: Option<&str>,
    still: &CancellationToken,
) -> Result<(Pictures, Vec<String>), Error> {
    let ImageSet { images, mut skipped } = images::scan(folder)?;
    let open = |name: &str| folder.join(name).open();
    let names = || images.iter().map(|image| image.name.as_str());
    let captions = captions.map(|column| FolderCaptions::new(folder.shown(), names(), column, &open));
    let captions = captions.transpose()?;
    if captions.is_some() {
        let used = caption_file_names(names());
        skipped.retain(|name| !used.contains(name));
    }
    let mut entries = Vec::with_capacity(images.len());
    let (mut listed, mut words) = (Vec::with_capacity(images.len()), Vec::with_capacity(images.len()));
    for image in images {
        let opened = folder.join(&image.name).open();
        let opened = opened.map_err(|source| data::Error::ReadImage { name: image.name.clone(), source })?;
        let (sha256, size) = hash_opened(opened, image.place.shown(), still)?;
        let of_image = captions.as_ref().map(|captions| captions.of(&image.name));
        let of_image = of_image.transpose()?.unwrap_or_default();
        entries.push(ManifestFile::new(image.name.clone(), sha256, size, of_image.clone()));
        words.push(of_image);
        listed.push(ListedImage { file: image, sha256 });
    }
    let hash = ContentHash::of(&Manifest::new(entries)?.to_json()?);
    Ok((Pictures::new(listed, words, hash), skipped))
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
            let place = ConfinedPath::at(cache.path(*sha256)).into();
            let file = ImageFile { name: name.clone(), place };
            ListedImage { file, sha256: *sha256 }
        })
        .collect();
    needed.extend(manifest.files().iter().map(|file| file.sha256).chain([hash]));
    let captions = manifest.files().iter().map(|file| file.captions().cloned().collect()).collect();
    Ok(Pictures::new(files, captions, hash))
}
