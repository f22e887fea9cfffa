//! The files: one an entry, named by its key, in one folder of the worker.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use ringtune_shared::files::{FileError, write_unsynced};
use tracing::warn;

use super::{
    LatentKey,
    entry::{EntryError, decode, encode, file_length},
};
use crate::{bounded_folder, engine::Moments};

/// Posteriors that this worker has met, up to a bound; what was used longest ago goes first. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LatentCache {
    folder: PathBuf,
    most_bytes: u64,
}

/// Why there is no posterior to be had under a key.
#[derive(Debug, thiserror::Error)]
pub(super) enum Missing {
    /// There is no file.
    #[error("there is none")]
    Absent,
    /// There is one that cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
    /// It held something else, and is removed.
    #[error("it was damaged: {0}")]
    Damaged(EntryError),
}

impl LatentCache {
    /// A cache in `folder`, which is made if need be, of about `most_bytes`. Blocks: what an earlier start left there is
    /// trimmed to that, and what it left half-written is removed.
    pub fn open(folder: PathBuf, most_bytes: u64) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        bounded_folder::remove_unfinished(&folder);
        let cache = Self { folder, most_bytes };
        cache.trim(&BTreeSet::new());
        Ok(cache)
    }

    /// Entries of one job in a folder that is removed with it, and made with the first of them.
    pub(super) fn of_a_job(folder: PathBuf) -> Self {
        Self { folder, most_bytes: u64::MAX }
    }

    /// About how much it keeps.
    pub(super) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// Path of an entry, present or not.
    pub fn path(&self, key: LatentKey) -> PathBuf {
        self.folder.join(key.0.to_string())
    }

    /// The posterior under `key`, if it is there and whole; `shape`: channels, rows and columns that it must
    /// have. A damaged file is removed, so that it is made again. Blocks.
    pub fn read(&self, key: LatentKey, shape: [usize; 3]) -> Option<Moments> {
        let found = self.find(key, shape);
        let file = self.path(key);
        match &found {
            Err(Missing::Unreadable(error)) => {
                warn!(file = %file.display(), %error, "a file in the latent cache cannot be read: encoding again");
            }
            Err(Missing::Damaged(error)) => {
                warn!(file = %file.display(), %error, "a damaged file in the latent cache: encoding again");
            }
            Ok(_) | Err(Missing::Absent) => {}
        }
        found.ok()
    }

    /// As above, but returns the error.
    pub(super) fn find(&self, key: LatentKey, shape: [usize; 3]) -> Result<Moments, Missing> {
        let path = self.path(key);
        let bytes = read_bounded(&path, file_length(shape)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Missing::Absent,
            _ => Missing::Unreadable(error),
        })?;
        let moments = decode(&bytes, key, shape).map_err(|error| {
            let _ = fs::remove_file(&path);
            Missing::Damaged(error)
        })?;
        bounded_folder::mark_used(&path, SystemTime::now());
        Ok(moments)
    }

    /// Keeps a posterior, if a cache of its size can. Nobody waits for the disk: what a crash of the machine tears is found
    /// damaged, and made again. Blocks.
    pub fn write(&self, key: LatentKey, moments: &Moments) -> Result<(), FileError> {
        let (path, bytes) = (self.path(key), encode(key, moments));
        if bytes.len() as u64 > self.most_bytes {
            return Ok(());
        }
        fs::create_dir_all(&self.folder).map_err(|cause| FileError {
            action: "create",
            path: self.folder.clone(),
            cause,
        })?;
        write_unsynced(&path, &bytes)
    }

    /// Lets the system read an entry ahead of its use. Blocks for a moment.
    pub(super) fn expect(&self, key: LatentKey) {
        // A wish: without it reading takes longer.
        if let Ok(file) = File::open(self.path(key)) {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed);
        }
    }

    /// Removes what was used longest ago until the rest fits, but nothing that is `needed`. Blocks.
    pub fn trim(&self, needed: &BTreeSet<LatentKey>) {
        let needed: BTreeSet<PathBuf> = needed.iter().map(|key| self.path(*key)).collect();
        bounded_folder::trim(&self.folder, self.most_bytes, |path| needed.contains(path));
    }
}

/// A longer file is read to one byte more than `most` and found damaged.
fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringtune_shared::{files::temporary_path_beside, ids::ContentHash};

    use super::*;
    use crate::latents::entry::tests::{SHAPE, posterior};

    fn key(number: u8) -> LatentKey {
        LatentKey(ContentHash::of(&[number]))
    }

    #[test]
    fn a_damaged_entry_is_removed_and_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = LatentCache::open(folder.path().join("latents"), 1 << 20).unwrap();
        assert_eq!(cache.read(key(0), SHAPE), None);
        cache.write(key(0), &posterior(1.0)).unwrap();
        assert_eq!(cache.read(key(0), SHAPE), Some(posterior(1.0)));
        assert_eq!(cache.read(key(1), SHAPE), None);
        let whole = fs::read(cache.path(key(0))).unwrap();
        let torn = |at: usize| [&whole[..at], &vec![0; whole.len() - at]].concat();
        for damage in [
            // A torn file: after a crash its length may be on the disk without its bytes.
            torn(0),
            torn(64),
            torn(whole.len() - 4),
            [whole.as_slice(), &[0]].concat(),
            whole[..whole.len() - 1].to_vec(),
            Vec::new(),
            vec![0; 1 << 20],
        ] {
            fs::write(cache.path(key(0)), damage).unwrap();
            assert_eq!(cache.read(key(0), SHAPE), None);
            assert!(!cache.path(key(0)).exists());
        }
        cache.write(key(0), &posterior(1.0)).unwrap();
        assert_eq!(cache.read(key(0), SHAPE), Some(posterior(1.0)));
    }

    #[test]
    fn what_is_there_and_cannot_be_read_is_told_from_what_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let cache = LatentCache::open(folder.path().to_owned(), 1 << 20).unwrap();
        assert!(matches!(cache.find(key(0), SHAPE), Err(Missing::Absent)));
        fs::create_dir(cache.path(key(0))).unwrap();
        let unreadable = cache.find(key(0), SHAPE).unwrap_err();
        assert!(matches!(&unreadable, Missing::Unreadable(_)), "{unreadable}");
        assert!(unreadable.to_string().contains("directory"), "{unreadable}");
        assert_eq!(cache.read(key(0), SHAPE), None);
        fs::write(cache.path(key(1)), b"damaged").unwrap();
        assert!(matches!(cache.find(key(1), SHAPE), Err(Missing::Damaged(EntryError::NoEntry))));
        assert!(matches!(cache.find(key(1), SHAPE), Err(Missing::Absent)));
    }

    #[test]
    fn a_start_with_less_room_keeps_less_and_nothing_half_written() {
        let folder = tempfile::tempdir().unwrap();
        let open = |most_bytes| LatentCache::open(folder.path().to_owned(), most_bytes).unwrap();
        let cache = open(350);
        for number in 0..2u8 {
            cache.write(key(number), &posterior(f32::from(number))).unwrap();
            let age = Duration::from_secs(1000 + u64::from(number));
            bounded_folder::mark_used(&cache.path(key(number)), SystemTime::UNIX_EPOCH + age);
        }
        let left = || fs::read_dir(folder.path()).unwrap().count();
        fs::write(temporary_path_beside(&cache.path(key(2))), b"half").unwrap();
        assert_eq!(left(), 3);
        open(350);
        assert_eq!(left(), 2);
        open(150);
        assert_eq!((left(), cache.read(key(1), SHAPE)), (1, Some(posterior(1.0))));
        open(0);
        assert_eq!(left(), 0);
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = LatentCache::open(folder.path().to_owned(), 350).unwrap();
        for number in 0..4u8 {
            cache.write(key(number), &posterior(f32::from(number))).unwrap();
            let age = Duration::from_secs(1000 + u64::from(number));
            bounded_folder::mark_used(&cache.path(key(number)), SystemTime::UNIX_EPOCH + age);
        }
        assert_eq!(fs::metadata(cache.path(key(0))).unwrap().len(), 140);
        // Reading is using.
        assert!(cache.read(key(0), SHAPE).is_some());
        cache.trim(&BTreeSet::from([key(2)]));
        let left: Vec<u8> = (0..4).filter(|number| cache.path(key(*number)).exists()).collect();
        // The third was not used for longer than the fourth, but is needed.
        assert_eq!(left, [0, 2]);
    }

    #[test]
    fn nothing_is_written_that_could_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        for most_bytes in [0, 139] {
            let cache = LatentCache::open(folder.path().to_owned(), most_bytes).unwrap();
            cache.write(key(0), &posterior(1.0)).unwrap();
            assert!(!cache.path(key(0)).exists());
        }
    }
}
