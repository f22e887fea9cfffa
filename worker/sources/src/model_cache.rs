//! Our own cache, for models out of buckets: bounded, shared by the workers of a machine.
//!
//! ```text
//! KEY/FILES        one state of one model
//! KEY.lock         held alone by whoever fetches or removes it, shared by whoever uses it
//! KEY.used         there once all files are; touched whenever it is used
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    Environment, Error,
    lock::{FileLock, Mode},
};

/// Room that a download leaves on the disk.
const SPARE_ROOM: u64 = 256 << 20;

/// Folder and limit of the cache.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Its folder; made if need be.
    pub folder: PathBuf,
    /// Bytes of all models together.
    pub most_bytes: u64,
}

/// $XDG_CACHE_HOME/ringtune/models or ~/.cache/ringtune/models; none without a home folder.
pub fn default_cache_folder(environment: &Environment) -> Option<PathBuf> {
    Some(environment.cache_home()?.join("ringtune/models"))
}

/// A folder of models. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ModelCache {
    options: CacheOptions,
}

/// A right to a model.
#[derive(Debug)]
pub(crate) enum Right {
    /// It is complete, and stays until the lock is dropped.
    Use(FileLock),
    /// It is not here, and nobody else fetches it until the lock is dropped.
    Fetch(FileLock),
    /// Another process fetches or removes it.
    Wait,
}

/// Paths of a model, present or not.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) folder: PathBuf,
    lock: PathBuf,
    used: PathBuf,
}

impl ModelCache {
    pub(crate) fn new(options: CacheOptions) -> Self {
        Self { options }
    }

    /// The folder that everything is in.
    pub(crate) fn folder(&self) -> &Path {
        &self.options.folder
    }

    /// `key`: hexadecimal digits that name a model's state.
    pub(crate) fn entry(&self, key: &str) -> Entry {
        let file = |ending: &str| self.options.folder.join(format!("{key}{ending}"));
        Entry { folder: file(""), lock: file(".lock"), used: file(".used") }
    }

    /// Asks for a right to a model. Blocks on the disk only.
    pub(crate) fn ask(&self, entry: &Entry) -> Result<Right, Error> {
        if entry.used.exists() {
            // Somebody who removes it holds the lock alone; then it is as good as gone.
            let Some(lock) = FileLock::try_take(&entry.lock, Mode::Shared)? else { return Ok(Right::Wait) };
            if entry.used.exists() {
                touch(&entry.used)?;
                return Ok(Right::Use(lock));
            }
            return Ok(Right::Wait);
        }
        let Some(lock) = FileLock::try_take(&entry.lock, Mode::Exclusive)? else { return Ok(Right::Wait) };
        // Another process may have come to its end in between.
        Ok(if entry.used.exists() { Right::Wait } else { Right::Fetch(lock) })
    }

    /// Says that all files are here. Blocks.
    pub(crate) fn complete(&self, entry: &Entry) -> Result<(), Error> {
        touch(&entry.used)
    }

    /// Removes what was used longest ago until `bytes` more fit. What is in use stays, and so does `entry`. Blocks.
    ///
    /// # Errors
    /// They do not fit into the cache, or not on the disk.
    pub(crate) fn make_room(&self, entry: &Entry, what: &str, bytes: u64) -> Result<(), Error> {
        let most = self.options.most_bytes;
        let own = size_of(&entry.folder);
        if bytes.saturating_add(own) > most {
            let problem = format!(
                "has {} bytes, and model_cache.max_bytes allows {most} for all models together",
                bytes.saturating_add(own)
            );
            return Err(Error::TooLarge { what: what.to_owned(), problem });
        }
        let mut entries = self.list();
        let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        entries.sort_by_key(|(used, ..)| *used);
        for (_, size, other) in entries.iter().filter(|(.., other)| other.folder != entry.folder) {
            if total.saturating_add(bytes) <= most {
                break;
            }
            if remove(other)? {
                tracing::info!(folder = %other.folder.display(), bytes = size, "removed from the model cache");
                total -= size;
            }
        }
        if total.saturating_add(bytes) > most {
            let problem = format!(
                "does not fit: the model cache has {total} bytes in use, and model_cache.max_bytes is {most}"
            );
            return Err(Error::TooLarge { what: what.to_owned(), problem });
        }
        check_room(&self.options.folder, what, bytes)
    }

    /// All models, complete or not, with the time of their last use and their sizes.
    fn list(&self) -> Vec<(SystemTime, u64, Entry)> {
        let Ok(entries) = fs::read_dir(&self.options.folder) else { return Vec::new() };
        entries
            .flatten()
            .filter(|entry| entry.path().is_dir())
            .filter_map(|entry| {
                let found = self.entry(entry.file_name().to_str()?);
                let changed = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).ok();
                let used = changed(&found.used).or_else(|| changed(&found.folder));
                Some((used.unwrap_or(SystemTime::UNIX_EPOCH), size_of(&found.folder), found))
            })
            .collect()
    }
}

/// Removes a model unless somebody uses or fetches it; says whether it did. The lock stays: another process may
/// be waiting for it.
fn remove(entry: &Entry) -> Result<bool, Error> {
    let Some(_alone) = FileLock::try_take(&entry.lock, Mode::Exclusive)? else { return Ok(false) };
    // First what says that it is whole.
    match fs::remove_file(&entry.used) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io(&entry.used)(error));
        }
        _ => fs::remove_dir_all(&entry.folder).map_err(Error::io(&entry.folder))?,
    }
    Ok(true)
}

fn touch(file: &Path) -> Result<(), Error> {
    let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).open(file);
    opened.and_then(|file| file.set_modified(SystemTime::now())).map_err(Error::io(file))
}

fn size_of(folder: &Path) -> u64 {
    let (mut bytes, mut open) = (0, vec![folder.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => open.push(entry.path()),
                Ok(about) => bytes += about.len(),
                Err(_) => (),
            }
        }
    }
    bytes
}

/// Refuses a download that the disk has no room for. Blocks for a moment.
pub(crate) fn check_room(folder: &Path, what: &str, bytes: u64) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(Error::io(folder))?;
    let about = rustix::fs::statvfs(folder).map_err(|error| Error::io(folder)(error.into()))?;
    let free = about.f_bavail.saturating_mul(about.f_frsize);
    if bytes == 0 || bytes.saturating_add(SPARE_ROOM) <= free {
        return Ok(());
    }
    let problem = format!("needs {bytes} bytes in {}, where {free} are free", folder.display());
    Err(Error::TooLarge { what: what.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn cache(folder: &Path) -> ModelCache {
        ModelCache::new(CacheOptions { folder: folder.to_owned(), most_bytes: 25 })
    }

    fn fill(cache: &ModelCache, key: &str, age: u64) -> Entry {
        let entry = cache.entry(key);
        fs::create_dir_all(entry.folder.join("unet")).unwrap();
        fs::write(entry.folder.join("unet/x"), [0; 10]).unwrap();
        cache.complete(&entry).unwrap();
        let time = SystemTime::now() - Duration::from_secs(age);
        fs::OpenOptions::new().write(true).open(&entry.used).unwrap().set_modified(time).unwrap();
        entry
    }

    fn in_use(cache: &ModelCache, entry: &Entry) -> FileLock {
        match cache.ask(entry).unwrap() {
            Right::Use(lock) => lock,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_fetches_and_several_use() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let entry = cache.entry("a");
        let Right::Fetch(alone) = cache.ask(&entry).unwrap() else { panic!("it is not there") };
        assert!(matches!(cache.ask(&entry).unwrap(), Right::Wait));
        cache.complete(&entry).unwrap();
        assert!(matches!(cache.ask(&entry).unwrap(), Right::Wait));
        drop(alone);
        let _two = (in_use(&cache, &entry), in_use(&cache, &entry));
    }

    #[test]
    fn the_longest_unused_goes_first_and_what_is_in_use_stays() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let (oldest, old, new) = (fill(&cache, "a", 300), fill(&cache, "b", 200), cache.entry("c"));
        let held = in_use(&cache, &oldest);
        cache.make_room(&new, "s3://x/y", 10).unwrap();
        assert!(oldest.folder.exists() && !old.folder.exists());
        assert!(matches!(cache.ask(&old).unwrap(), Right::Fetch(_)));
        let refused = cache.make_room(&new, "s3://x/y", 16).unwrap_err();
        assert!(matches!(refused, Error::TooLarge { .. }), "{refused}");
        drop(held);
        cache.make_room(&new, "s3://x/y", 16).unwrap();
        assert!(!oldest.folder.exists());
    }

    #[test]
    fn using_makes_new() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let (first, second) = (fill(&cache, "a", 300), fill(&cache, "b", 200));
        drop(in_use(&cache, &first));
        cache.make_room(&cache.entry("c"), "s3://x/y", 10).unwrap();
        assert!(first.folder.exists() && !second.folder.exists());
    }

    #[test]
    fn what_can_never_fit_is_refused_before_anything_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let there = fill(&cache, "a", 300);
        let refused = cache.make_room(&cache.entry("c"), "s3://x/y", 26).unwrap_err();
        assert!(refused.to_string().contains("model_cache.max_bytes"), "{refused}");
        assert!(there.folder.exists());
        assert!(check_room(folder.path(), "s3://x/y", u64::MAX).is_err());
    }
}
