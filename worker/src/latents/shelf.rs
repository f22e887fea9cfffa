//! Storage of a running job's posteriors: in memory as far as there is room, the others in files.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use ringtune_shared::files::FileError;
use tracing::warn;

use super::{LatentCache, LatentKey, entry::file_length};
use crate::{
    engine::Moments,
    train::{Posterior, StoredPosterior},
};

/// Hands out room, first come, first served. What has none in memory is read whenever it is shown: from the worker's
/// cache, as far as that keeps so much, else from a folder of the job.
#[derive(Debug)]
pub struct Shelf {
    cache: LatentCache,
    overflow: LatentCache,
    memory_left: u64,
    cache_left: u64,
    /// Keys that the cache has to keep as long as the job runs.
    needed: BTreeSet<LatentKey>,
}

/// Where a posterior is stored.
#[derive(Clone, Debug)]
pub struct PosteriorSlot {
    room: Room,
    cache: LatentCache,
    overflow: LatentCache,
    key: LatentKey,
    shape: [usize; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Memory,
    Cache,
    Overflow,
}

impl Shelf {
    /// For posteriors of `memory_bytes` in memory. `overflow`: a folder that goes with the job; made when it is needed.
    pub fn new(cache: LatentCache, overflow: PathBuf, memory_bytes: u64) -> Self {
        Self {
            overflow: LatentCache::of_a_job(overflow),
            memory_left: memory_bytes,
            cache_left: cache.most_bytes(),
            cache,
            needed: BTreeSet::new(),
        }
    }

    /// Room for a posterior whose latents have `shape`: channels, rows and columns.
    pub fn place(&mut self, key: LatentKey, shape: [usize; 3]) -> PosteriorSlot {
        let bytes = file_length(shape);
        let room = if take(&mut self.memory_left, bytes) {
            Room::Memory
        } else if self.needed.contains(&key) || take(&mut self.cache_left, bytes) {
            self.needed.insert(key);
            Room::Cache
        } else {
            Room::Overflow
        };
        PosteriorSlot { room, cache: self.cache.clone(), overflow: self.overflow.clone(), key, shape }
    }

    /// A task that evicts the least recently used entries of the worker's cache down to its limit, but nothing that this
    /// job reads there. Blocks.
    pub fn trimming(&self) -> impl FnOnce() + Send + use<> {
        let (cache, needed) = (self.cache.clone(), self.needed.clone());
        move || cache.trim(&needed)
    }
}

/// Takes `wanted` off what is left, if so much is.
fn take(left: &mut u64, wanted: u64) -> bool {
    let Some(rest) = left.checked_sub(wanted) else { return false };
    *left = rest;
    true
}

impl PosteriorSlot {
    /// Puts a posterior in its place that the worker's cache has already. Blocks.
    ///
    /// # Errors
    /// The job's folder takes no more files.
    pub fn put_cached(self, moments: Moments) -> Result<Posterior, FileError> {
        match self.room {
            Room::Memory => Ok(moments.into()),
            Room::Cache => Ok(self.stored_in(self.cache.clone())),
            Room::Overflow => self.put_in_overflow(&moments),
        }
    }

    /// Stores a new posterior, which the worker's cache keeps for the next job as far as it can. Blocks.
    ///
    /// # Errors
    /// The job's folder takes no more files.
    pub fn put(self, moments: Moments) -> Result<Posterior, FileError> {
        if self.room == Room::Overflow {
            return self.put_in_overflow(&moments);
        }
        let written = self.cache.write(self.key, &moments);
        if let Err(error) = &written {
            warn!(%error, "the latent cache keeps less than it could");
        }
        match self.room {
            Room::Memory => Ok(moments.into()),
            _ if written.is_ok() => Ok(self.stored_in(self.cache.clone())),
            _ => self.put_in_overflow(&moments),
        }
    }

    fn put_in_overflow(self, moments: &Moments) -> Result<Posterior, FileError> {
        self.overflow.write(self.key, moments)?;
        Ok(self.stored_in(self.overflow.clone()))
    }

    fn stored_in(&self, folder: LatentCache) -> Posterior {
        Posterior::Stored(Arc::new(StoredLatents { folder, key: self.key, shape: self.shape }))
    }
}

/// An entry of a folder.
#[derive(Debug)]
struct StoredLatents {
    folder: LatentCache,
    key: LatentKey,
    shape: [usize; 3],
}

impl StoredPosterior for StoredLatents {
    fn shape(&self) -> [usize; 3] {
        self.shape
    }

    fn read(&self) -> Result<Arc<Moments>, String> {
        self.folder.find(self.key, self.shape).map(Arc::new).map_err(|missing| {
            let path = self.folder.path(self.key);
            format!("{}: the encoded picture that was there is lost: {missing}", path.display())
        })
    }

    fn expect(&self) {
        self.folder.expect(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use ringtune_shared::ids::ContentHash;

    use super::*;
    use crate::latents::entry::tests::{SHAPE, posterior};

    /// Bytes of one entry of the tests' shape.
    const ENTRY: u64 = 140;

    fn key(number: u8) -> LatentKey {
        LatentKey(ContentHash::of(&[number]))
    }

    fn count(folder: &Path) -> usize {
        fs::read_dir(folder).map_or(0, Iterator::count)
    }

    /// Ten posteriors on a shelf with room for so many in memory and in the cache.
    fn shelved(folder: &Path, in_memory: u64, in_cache: u64) -> (Shelf, Vec<Posterior>) {
        let cache = LatentCache::open(folder.join("cache"), in_cache * ENTRY).unwrap();
        let mut shelf = Shelf::new(cache, folder.join("job/latents"), in_memory * ENTRY + ENTRY / 2);
        let place = |number: u8| shelf.place(key(number), SHAPE).put(posterior(f32::from(number))).unwrap();
        let posteriors = (0..10).map(place).collect();
        (shelf, posteriors)
    }

    #[test]
    fn memory_has_a_bound_and_nothing_is_lost() {
        for (in_memory, in_cache) in [(10, 10), (3, 20), (3, 2), (3, 0), (0, 0)] {
            let folder = tempfile::tempdir().unwrap();
            let (shelf, posteriors) = shelved(folder.path(), in_memory, in_cache);
            shelf.trimming()();
            let here = posteriors.iter().filter(|one| matches!(one, Posterior::Here(_))).count();
            assert_eq!(here as u64, in_memory);
            assert!(count(&folder.path().join("cache")) as u64 <= in_cache);
            let stored = 10 - in_memory;
            let overflow = count(&folder.path().join("job/latents")) as u64;
            assert_eq!(overflow, stored.saturating_sub(in_cache));
            for (number, stored) in posteriors.iter().enumerate() {
                assert_eq!(stored.shape(), SHAPE);
                stored.read().unwrap();
                assert_eq!(*stored.read().unwrap(), posterior(number as f32));
            }
        }
    }

    #[test]
    fn what_the_job_reads_in_the_cache_is_not_trimmed_however_long_it_was_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let (shelf, posteriors) = shelved(folder.path(), 2, 8);
        // Two of memory's make room, though the others were used before them.
        let entry = |number: u8| folder.path().join("cache").join(key(number).0.to_string());
        for number in 2..10 {
            crate::bounded_folder::mark_used(&entry(number), std::time::SystemTime::UNIX_EPOCH);
        }
        shelf.trimming()();
        assert_eq!((0..10).filter(|number| entry(*number).exists()).count(), 8);
        assert!(!entry(0).exists() && !entry(1).exists());
        for (number, stored) in posteriors.iter().enumerate() {
            assert_eq!(*stored.read().unwrap(), posterior(number as f32));
        }
    }

    #[test]
    fn entries_of_the_cache_that_it_cannot_keep_go_to_the_job() {
        let folder = tempfile::tempdir().unwrap();
        let cache = LatentCache::open(folder.path().join("cache"), ENTRY).unwrap();
        let mut shelf = Shelf::new(cache, folder.path().join("job/latents"), 0);
        let place =
            |number: u8| shelf.place(key(number), SHAPE).put_cached(posterior(f32::from(number))).unwrap();
        let posteriors: Vec<Posterior> = (0..3).map(place).collect();
        // The first stands for what the cache has.
        assert!(posteriors[0].read().is_err());
        assert_eq!(*posteriors[1].read().unwrap(), posterior(1.0));
        assert_eq!(*posteriors[2].read().unwrap(), posterior(2.0));
    }

    #[test]
    fn what_was_lost_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (_, posteriors) = shelved(folder.path(), 0, 0);
        let entry = folder.path().join("job/latents").join(key(4).0.to_string());
        fs::write(&entry, b"damaged").unwrap();
        let lost = || posteriors[4].read().unwrap_err().to_string();
        let damaged = lost();
        assert!(damaged.contains(&entry.display().to_string()), "{damaged}");
        // And why.
        fs::create_dir(&entry).unwrap();
        let unreadable = lost();
        assert!(damaged.contains("damaged") && unreadable.contains("directory"), "{damaged}; {unreadable}");
    }
}
