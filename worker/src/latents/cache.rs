//! The files: one an entry, named by its key, in one folder of the worker.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use ringtune_shared::files::{FileError, write_atomically};
use tracing::warn;

use super::{
    LatentKey,
    entry::{decode, encode, row_length},
};
use crate::{bounded_folder, train::EncodedImage};

/// More than the header of any entry.
const HEADER_BYTES: usize = 256;

/// Posteriors that this worker has met, up to a bound; what was used longest ago goes first. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LatentCache {
    folder: PathBuf,
    most_bytes: u64,
}

impl LatentCache {
    /// A cache in `folder`, which is made if need be, of about `most_bytes`.
    pub fn open(folder: PathBuf, most_bytes: u64) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, most_bytes })
    }

    /// Where an entry is or would be.
    pub fn path(&self, key: LatentKey) -> PathBuf {
        self.folder.join(key.0.to_string())
    }

    /// The posteriors under `key`, if they are there and whole; `shape`: channels, rows and columns that they must
    /// have. A damaged file is removed, so that it is made again. Blocks.
    pub fn read(&self, key: LatentKey, shape: [usize; 3]) -> Option<EncodedImage> {
        let path = self.path(key);
        let bytes = read_bounded(&path, row_length(shape) * 4 + HEADER_BYTES).ok()?;
        match decode(&bytes, key, shape) {
            Ok(image) => {
                bounded_folder::mark_used(&path, SystemTime::now());
                Some(image)
            }
            Err(error) => {
                warn!(file = %path.display(), %error, "a damaged file in the latent cache: encoding again");
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// Keeps posteriors. Blocks.
    pub fn write(&self, key: LatentKey, image: &EncodedImage) -> Result<(), FileError> {
        write_atomically(&self.path(key), &encode(key, image))
    }

    /// Removes what was used longest ago until the rest fits. Blocks.
    pub fn trim(&self) {
        bounded_folder::trim(&self.folder, self.most_bytes, |_| false);
    }
}

/// A longer file is read to one byte more than `most` and found damaged.
fn read_bounded(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringtune_shared::ids::ContentHash;

    use super::*;
    use crate::latents::entry::tests::{SHAPE, image};

    fn key(number: u8) -> LatentKey {
        LatentKey(ContentHash::of(&[number]))
    }

    #[test]
    fn a_damaged_entry_is_removed_and_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = LatentCache::open(folder.path().join("latents"), 1 << 20).unwrap();
        assert_eq!(cache.read(key(0), SHAPE), None);
        cache.write(key(0), &image(1.0)).unwrap();
        assert_eq!(cache.read(key(0), SHAPE), Some(image(1.0)));
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
        cache.write(key(0), &image(1.0)).unwrap();
        assert_eq!(cache.read(key(0), SHAPE), Some(image(1.0)));
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = LatentCache::open(folder.path().to_owned(), 450).unwrap();
        for number in 0..4u8 {
            cache.write(key(number), &image(f32::from(number))).unwrap();
            let age = Duration::from_secs(1000 + u64::from(number));
            bounded_folder::mark_used(&cache.path(key(number)), SystemTime::UNIX_EPOCH + age);
        }
        assert_eq!(fs::metadata(cache.path(key(0))).unwrap().len(), 188);
        // Reading is using.
        assert!(cache.read(key(0), SHAPE).is_some());
        cache.trim();
        let left: Vec<u8> = (0..4).filter(|number| cache.path(key(*number)).exists()).collect();
        assert_eq!(left, [0, 3]);
    }
}
