//! The files: one an entry, named by its key, in one folder of the worker.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use ringtune_shared::files::{FileError, write_atomically};
use tracing::warn;

use super::{
    LatentKey,
    entry::{decode, encode, file_length},
};
use crate::{bounded_folder, engine::Moments};

/// Posteriors that this worker has met, up to a bound; what was used longest ago goes first. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LatentCache {
    folder: PathBuf,
    most_bytes: u64,
    /// It outlives the job: what is kept is synced.
    lasts: bool,
}

impl LatentCache {
    /// A cache in `folder`, which is made if need be, of about `most_bytes`.
    pub fn open(folder: PathBuf, most_bytes: u64) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, most_bytes, lasts: true })
    }

    /// Entries of one job in a folder that is removed with it, and made with the first of them.
    pub(super) fn of_a_job(folder: PathBuf) -> Self {
        Self { folder, most_bytes: u64::MAX, lasts: false }
    }

    /// About how much it keeps.
    pub(super) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// Where an entry is or would be.
    pub fn path(&self, key: LatentKey) -> PathBuf {
        self.folder.join(key.0.to_string())
    }

    /// The posterior under `key`, if it is there and whole; `shape`: channels, rows and columns that it must
    /// have. A damaged file is removed, so that it is made again. Blocks.
    pub fn read(&self, key: LatentKey, shape: [usize; 3]) -> Option<Moments> {
        let path = self.path(key);
        let bytes = read_bounded(&path, file_length(shape)).ok()?;
        match decode(&bytes, key, shape) {
            Ok(moments) => {
                bounded_folder::mark_used(&path, SystemTime::now());
                Some(moments)
            }
            Err(error) => {
                warn!(file = %path.display(), %error, "a damaged file in the latent cache: encoding again");
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// Keeps a posterior, if a cache of its size can. Blocks.
    pub fn write(&self, key: LatentKey, moments: &Moments) -> Result<(), FileError> {
        let (path, bytes) = (self.path(key), encode(key, moments));
        if bytes.len() as u64 > self.most_bytes {
            return Ok(());
        }
        if self.lasts {
            return write_atomically(&path, &bytes);
        }
        // Nobody but this job reads it: what a crash leaves of it is of no use, whole or not.
        let written = fs::create_dir_all(&self.folder).and_then(|()| fs::write(&path, &bytes));
        written.map_err(|cause| FileError { action: "write", path, cause })
    }

    /// Lets the system read an entry ahead of its use. Blocks for a moment.
    pub(super) fn expect(&self, key: LatentKey) {
        // A wish: without it reading takes longer.
        if let Ok(file) = File::open(self.path(key)) {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed);
        }
    }

    /// Removes what was used longest ago until the rest fits, but nothing that is `needed`. Blocks.
    pub fn trim(&self, needed: &HashSet<LatentKey>) {
        let needed: HashSet<PathBuf> = needed.iter().map(|key| self.path(*key)).collect();
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

    use ringtune_shared::ids::ContentHash;

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
        for damage in [
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
        cache.trim(&HashSet::from([key(2)]));
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
