//! Files fetched by content, kept for the next job, up to a bound.

use std::{collections::BTreeSet, fs, path::PathBuf, time::SystemTime};

use ringtune_shared::{files::write_atomically, ids::ContentHash};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Error, client::hash_file_blocking};
use crate::bounded_folder;

/// A folder of files named by their hash. What was used longest ago goes first when it is full.
#[derive(Clone, Debug)]
pub struct ContentCache {
    folder: PathBuf,
    most_bytes: u64,
}

impl ContentCache {
    /// A cache in `folder`, which is made if need be, of about `most_bytes`. Blocks: what an earlier start left there is
    /// trimmed to that, and what it left half-written is removed.
    pub fn open(folder: PathBuf, most_bytes: u64) -> Result<Self, Error> {
        fs::create_dir_all(&folder).map_err(|source| Error::Io { path: folder.clone(), source })?;
        bounded_folder::remove_unfinished(&folder);
        let cache = Self { folder, most_bytes };
        cache.trim(&[]);
        Ok(cache)
    }

    /// Path of a content, present or not.
    pub fn path(&self, hash: ContentHash) -> PathBuf {
        self.folder.join(hash.to_string())
    }

    /// The content, if it is there and whole. A damaged file is removed. Blocks.
    pub fn read(&self, hash: ContentHash) -> Option<Vec<u8>> {
        let path = self.path(hash);
        let content = fs::read(&path).ok()?;
        if ContentHash::of(&content) != hash {
            warn!(file = %path.display(), "a damaged file in the cache: fetching it again");
            let _ = fs::remove_file(&path);
            return None;
        }
        bounded_folder::mark_used(&path, SystemTime::now());
        Some(content)
    }

    /// Path of a content, if it is present and intact, of any size. A damaged file is removed. Blocks.
    pub fn find(&self, hash: ContentHash) -> Option<PathBuf> {
        let path = self.path(hash);
        if !path.exists() {
            return None;
        }
        match hash_file_blocking(&path, &CancellationToken::new()) {
            Ok((found, _)) if found == hash => {
                bounded_folder::mark_used(&path, SystemTime::now());
                Some(path)
            }
            _ => {
                warn!(file = %path.display(), "a damaged file in the cache: fetching it again");
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// Keeps a content whose hash was checked. Blocks.
    pub fn write(&self, hash: ContentHash, content: &[u8]) -> Result<(), Error> {
        Ok(write_atomically(&self.path(hash), content)?)
    }

    /// Removes what was used longest ago until the rest fits, but nothing in `needed`. Blocks.
    pub fn trim(&self, needed: &[ContentHash]) {
        let needed: BTreeSet<PathBuf> = needed.iter().map(|hash| self.path(*hash)).collect();
        bounded_folder::trim(&self.folder, self.most_bytes, |path| needed.contains(path));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringtune_shared::files::temporary_path_beside;

    use super::*;

    #[test]
    fn what_a_crash_left_half_written_is_removed_at_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let open = || ContentCache::open(folder.path().to_owned(), 100).unwrap();
        let hash = ContentHash::of(b"abc");
        open().write(hash, b"abc").unwrap();
        let left = temporary_path_beside(&open().path(hash));
        fs::write(&left, b"ab").unwrap();
        assert_eq!(open().read(hash).as_deref(), Some(&b"abc"[..]));
        assert!(!left.exists());
    }

    #[test]
    fn what_is_damaged_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ContentCache::open(folder.path().join("cache"), 100).unwrap();
        let hash = ContentHash::of(b"abc");
        assert_eq!(cache.read(hash), None);
        cache.write(hash, b"abc").unwrap();
        assert_eq!(cache.read(hash).as_deref(), Some(&b"abc"[..]));
        assert_eq!(cache.find(hash), Some(cache.path(hash)));
        fs::write(cache.path(hash), b"abd").unwrap();
        assert_eq!(cache.read(hash), None);
        assert!(!cache.path(hash).exists());
        fs::write(cache.path(hash), b"abd").unwrap();
        assert_eq!(cache.find(hash), None);
        assert!(!cache.path(hash).exists());
    }

    #[test]
    fn the_longest_unused_goes_first_and_the_needed_stays() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ContentCache::open(folder.path().to_owned(), 25).unwrap();
        let contents: Vec<[u8; 10]> = (0..4u8).map(|n| [n; 10]).collect();
        let hashes: Vec<ContentHash> = contents.iter().map(|content| ContentHash::of(content)).collect();
        for (age, (hash, content)) in hashes.iter().zip(&contents).enumerate() {
            cache.write(*hash, content).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + age as u64);
            fs::File::open(cache.path(*hash)).unwrap().set_modified(time).unwrap();
        }
        cache.trim(&hashes[..1]);
        let left = || hashes.iter().map(|hash| cache.path(*hash).exists()).collect::<Vec<_>>();
        assert_eq!(left(), [true, false, false, true]);
        // The next start may have less room, and no job needs anything then.
        ContentCache::open(folder.path().to_owned(), 10).unwrap();
        assert_eq!(left(), [false, false, false, true]);
    }
}
