//! One pass over a file of pictures: what each is, and where it lies. Blocks.

use std::{fs::File, os::unix::fs::FileExt as _, sync::Arc};

use ringtune_shared::{
    ids::{ContentHash, ContentHasher},
    manifest::{ManifestFile, hash_of},
};
use ringtune_tables::shards::{self, MOST_SAMPLES, Sample};
use tokio_util::sync::CancellationToken;

use super::super::{super::Error, Pictures};
use crate::{
    access::ConfinedPath,
    data::{self, ImageFile, ImagePlace, ListedImage, OpenTable, image_place::in_file},
};

/// Bytes of all captions of a source together.
const MOST_CAPTION_BYTES: usize = 64 << 20;
/// Bytes that are hashed at once.
const PIECE: usize = 128 << 10;
/// Names of what is skipped that are kept.
const NAMED: usize = 20;

/// Pictures of a source.
#[derive(Debug, Default)]
pub(super) struct Content {
    files: Vec<ListedImage>,
    captions: Vec<Vec<String>>,
    sizes: Vec<u64>,
    caption_bytes: usize,
    /// Members that are no pictures: how many, and the first of them.
    pub(super) skipped: (usize, Vec<String>),
}

impl Content {
    fn push(&mut self, image: ListedImage, captions: Vec<String>, size: u64) {
        self.caption_bytes += captions.iter().map(String::len).sum::<usize>();
        self.files.push(image);
        self.captions.push(captions);
        self.sizes.push(size);
    }

    /// Adds those of another file.
    ///
    /// # Errors
    /// There are too many: goes on from the source's name.
    pub(super) fn add(&mut self, other: Self) -> Result<(), String> {
        self.files.extend(other.files);
        self.captions.extend(other.captions);
        self.sizes.extend(other.sizes);
        self.caption_bytes += other.caption_bytes;
        let (count, names) = other.skipped;
        self.skipped.0 += count;
        self.skipped.1.extend(names);
        self.skipped.1.truncate(NAMED);
        if self.files.len() > MOST_SAMPLES {
            return Err(format!("has more than {MOST_SAMPLES} pictures, which is what is allowed"));
        }
        match self.caption_bytes {
            0..=MOST_CAPTION_BYTES => Ok(()),
            bytes => Err(format!("has {bytes} bytes of captions, or more; allowed: {MOST_CAPTION_BYTES}")),
        }
    }

    /// All of them, with their hash.
    ///
    /// # Errors
    /// There are none: goes on from the source's name.
    pub(super) fn into_pictures(self) -> Result<Pictures, String> {
        let Self { files, captions, sizes, .. } = self;
        if files.is_empty() {
            return Err(
                "has no picture in its files; allowed in tar files: .jpg, .jpeg, .png and .webp".to_owned()
            );
        }
        let parts = files.iter().zip(&captions).zip(&sizes);
        let entries = parts.map(|((image, captions), size)| {
            ManifestFile::new(image.file.name.clone(), image.sha256, *size, captions.clone())
        });
        let hash = hash_of(entries).map_err(|error| format!("cannot be hashed: {error}"))?;
        Ok(Pictures::new(files, captions, hash))
    }
}

/// The pictures of a tar file, sorted by name. `shown`: its name, where there are several.
pub(super) fn read_shard(
    file: &Arc<ConfinedPath>,
    shown: Option<&str>,
    captions: Option<&str>,
    still: &CancellationToken,
) -> Result<Content, Error> {
    let failed = |source| data::Error::ReadFile { file: file.shown().to_owned(), source };
    let opened = file.open().map_err(failed)?;
    let listed = opened.try_clone().and_then(|file| shards::read(file, captions)).map_err(failed)?;
    let shards::Shard { samples, skipped } = listed.map_err(|problem| in_file(file, problem))?;
    let full = |name: String| shown.map_or_else(|| name.clone(), |shard| format!("{shard}/{name}"));
    let skipped = (skipped.0, skipped.1.into_iter().map(full).collect());
    let mut content = Content { skipped, ..Content::default() };
    for Sample { name, offset, length, captions } in samples {
        let sha256 = hash_part(&opened, offset, length, still).map_err(failed)?;
        let place = ImagePlace::Part { file: Arc::clone(file), offset, length };
        content.push(ListedImage { file: ImageFile { name: full(name), place }, sha256 }, captions, length);
    }
    Ok(content)
}

/// The pictures of a .parquet file, in the order of its rows.
pub(super) fn read_table(
    file: &Arc<ConfinedPath>,
    shown: &str,
    captions: Option<&str>,
    still: &CancellationToken,
) -> Result<Content, Error> {
    let wrong = |problem| in_file(file, problem);
    let mut open = OpenTable::default();
    let table = open.of(file)?;
    let captions = captions.map(|column| table.captions(column)).transpose().map_err(wrong)?;
    let mut captions = captions.unwrap_or_default().into_iter();
    let mut content = Content::default();
    for row in 0..table.rows() {
        if still.is_cancelled() {
            let source = std::io::Error::other("nobody waits for it any more");
            return Err(data::Error::ReadFile { file: file.shown().to_owned(), source }.into());
        }
        let picture = table.picture(row).map_err(wrong)?;
        let place = ImagePlace::Row { file: Arc::clone(file), row };
        let name = format!("{shown} row {}", row + 1);
        let image = ListedImage { file: ImageFile { name, place }, sha256: ContentHash::of(&picture) };
        content.push(image, captions.next().unwrap_or_default(), picture.len() as u64);
    }
    Ok(content)
}

/// The hash of a part of a file.
fn hash_part(
    file: &File,
    offset: u64,
    length: u64,
    still: &CancellationToken,
) -> std::io::Result<ContentHash> {
    let mut hasher = ContentHasher::new();
    let mut buffer = vec![0; PIECE];
    let mut done = 0;
    while done < length {
        if still.is_cancelled() {
            return Err(std::io::Error::other("nobody waits for its hash any more"));
        }
        let piece = &mut buffer[..usize::try_from(length - done).map_or(PIECE, |left| left.min(PIECE))];
        file.read_exact_at(piece, offset + done)?;
        hasher.update(piece);
        done += piece.len() as u64;
    }
    Ok(hasher.finish())
}
