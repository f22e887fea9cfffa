//! Files addressed by their content's SHA-256, in a local folder.
//!
//! ```text
//! ROOT/sha256/ab/abcd…   whole contents; the name is the hash, so a file never changes
//! ROOT/partial/abcd…     uploads that are under way or broke off
//! ```
//!
//! Invariant: a file below `sha256/` is whole, its hash was checked, and it is on disk: it gets there by a rename
//! of a synced file. Everything here blocks: call it from a blocking thread.

mod error;
mod upload;

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use ringtune_shared::ids::ContentHash;

pub use error::Error;
pub use upload::Upload;

/// What a store accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one content.
    pub content_bytes: u64,
    /// Uploads under way at a time.
    pub uploads: usize,
}

/// How much of a content is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Bytes.
    pub size: u64,
    /// It is all there, and its hash was checked.
    pub complete: bool,
}

/// A part of a content, read in order.
#[derive(Debug)]
pub struct Range {
    file: std::io::Take<File>,
    path: PathBuf,
    /// Bytes of the whole content.
    pub content_size: u64,
}

impl Range {
    /// The next at most `most` bytes; empty at the end.
    ///
    /// # Errors
    /// The file system's.
    pub fn next_chunk(&mut self, most: usize) -> Result<Vec<u8>, Error> {
        let mut chunk = Vec::with_capacity(most.min(usize::try_from(self.file.limit()).unwrap_or(most)));
        self.file
            .by_ref()
            .take(most as u64)
            .read_to_end(&mut chunk)
            .map_err(Error::io("read", self.path.clone()))?;
        Ok(chunk)
    }
}

/// A folder of contents; clones share it. Only one process may use a folder.
#[derive(Clone, Debug)]
pub struct Contents {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    limits: Limits,
    /// What is being uploaded now: one upload a content.
    under_way: Mutex<HashSet<ContentHash>>,
}

impl Contents {
    /// Opens a folder, making it where it is missing.
    ///
    /// # Errors
    /// The file system's.
    pub fn open(root: &Path, limits: Limits) -> Result<Self, Error> {
        for folder in [root.join("sha256"), root.join("partial")] {
            fs::create_dir_all(&folder).map_err(Error::io("create", folder.clone()))?;
        }
        let under_way = Mutex::new(HashSet::new());
        Ok(Self { shared: Arc::new(Shared { root: root.to_path_buf(), limits, under_way }) })
    }

    /// How much of a content is here.
    ///
    /// # Errors
    /// The file system's.
    pub fn committed(&self, hash: &ContentHash) -> Result<Committed, Error> {
        if let Some(size) = length(&self.shared.whole(hash))? {
            return Ok(Committed { size, complete: true });
        }
        Ok(Committed { size: length(&self.shared.partial(hash))?.unwrap_or(0), complete: false })
    }

    /// Goes on with an upload at `offset`, which must be what [`Contents::committed`] says.
    ///
    /// # Errors
    /// A size over the limit, another offset, somebody else at it, too many at a time, the file system's.
    pub fn upload(&self, hash: ContentHash, size: u64, offset: u64) -> Result<Upload, Error> {
        let limit = self.shared.limits.content_bytes;
        if size > limit {
            return Err(Error::TooLarge { given: size, limit });
        }
        Upload::begin(self.shared.clone(), hash, size, offset)
    }

    /// A content's bytes from `offset`, at most `length` of them; none: to the end.
    ///
    /// # Errors
    /// It is not here; the range begins behind its end; the file system's.
    pub fn read(&self, hash: &ContentHash, offset: u64, length: Option<u64>) -> Result<Range, Error> {
        let path = self.shared.whole(hash);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Error::NotFound(*hash)),
            opened => opened.map_err(Error::io("open", path.clone()))?,
        };
        let size = file.metadata().map_err(Error::io("read", path.clone()))?.len();
        if offset > size {
            return Err(Error::Range { offset, size });
        }
        file.seek(SeekFrom::Start(offset)).map_err(Error::io("read", path.clone()))?;
        Ok(Range { file: file.take(length.unwrap_or(u64::MAX)), path, content_size: size })
    }

    /// Drops a content that nobody refers to any more. One that is not here is no error.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove(&self, hash: &ContentHash) -> Result<(), Error> {
        let path = self.shared.whole(hash);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(Error::io("remove", path)),
        }
    }

    /// Marks a content as used now, so that [`Contents::older`] leaves it out.
    ///
    /// # Errors
    /// It is not here; the file system's.
    pub fn touch(&self, hash: &ContentHash) -> Result<(), Error> {
        let path = self.shared.whole(hash);
        let file = match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Error::NotFound(*hash)),
            opened => opened.map_err(Error::io("open", path.clone()))?,
        };
        file.set_modified(SystemTime::now()).map_err(Error::io("touch", path))
    }

    /// Contents that came, or were marked as used, at least `age` before `now`.
    ///
    /// # Errors
    /// The file system's.
    pub fn older(&self, now: SystemTime, age: Duration) -> Result<Vec<ContentHash>, Error> {
        let root = self.shared.root.join("sha256");
        let mut old = Vec::new();
        for folder in fs::read_dir(&root).map_err(Error::io("read", root.clone()))? {
            let folder = folder.map_err(Error::io("read", root.clone()))?.path();
            for entry in fs::read_dir(&folder).map_err(Error::io("read", folder.clone()))? {
                let entry = entry.map_err(Error::io("read", folder.clone()))?;
                let hash = entry.file_name().to_str().and_then(|name| name.parse::<ContentHash>().ok());
                let modified = entry.metadata().and_then(|metadata| metadata.modified());
                let modified = modified.map_err(Error::io("read", entry.path()))?;
                if now.duration_since(modified).is_ok_and(|idle| idle >= age) {
                    old.extend(hash);
                }
            }
        }
        Ok(old)
    }

    /// Drops uploads that broke off and were not touched for `age`. Returns how many.
    ///
    /// # Errors
    /// The file system's.
    pub fn drop_abandoned(&self, now: SystemTime, age: Duration) -> Result<usize, Error> {
        let folder = self.shared.root.join("partial");
        let mut dropped = 0;
        for entry in fs::read_dir(&folder).map_err(Error::io("read", folder.clone()))? {
            let path = entry.map_err(Error::io("read", folder.clone()))?.path();
            // Held while removing: no upload can begin on the file meanwhile.
            let under_way = self.shared.under_way();
            let hash = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            if hash.is_some_and(|hash: ContentHash| under_way.contains(&hash)) {
                continue;
            }
            let modified = fs::metadata(&path).and_then(|metadata| metadata.modified());
            let modified = modified.map_err(Error::io("read", path.clone()))?;
            if now.duration_since(modified).is_ok_and(|idle| idle >= age) {
                fs::remove_file(&path).map_err(Error::io("remove", path))?;
                dropped += 1;
            }
        }
        Ok(dropped)
    }
}

impl Shared {
    fn whole(&self, hash: &ContentHash) -> PathBuf {
        let name = hash.to_string();
        self.root.join("sha256").join(name.get(..2).unwrap_or("")).join(name)
    }

    fn partial(&self, hash: &ContentHash) -> PathBuf {
        self.root.join("partial").join(hash.to_string())
    }

    fn under_way(&self) -> MutexGuard<'_, HashSet<ContentHash>> {
        // A set of hashes is whole whatever happened to the thread that held it.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file's bytes; none where there is no file.
fn length(path: &Path) -> Result<Option<u64>, Error> {
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        metadata => Ok(Some(metadata.map_err(Error::io("read", path))?.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Contents) {
        let folder = tempfile::tempdir().unwrap();
        let contents = Contents::open(folder.path(), Limits { content_bytes: 1000, uploads: 2 }).unwrap();
        (folder, contents)
    }

    fn put(contents: &Contents, bytes: &[u8]) -> ContentHash {
        let hash = ContentHash::of(bytes);
        let mut upload = contents.upload(hash, bytes.len() as u64, 0).unwrap();
        upload.write(bytes).unwrap();
        assert!(upload.close().unwrap().complete);
        hash
    }

    #[test]
    fn ranges_are_read_in_chunks() {
        let (_folder, contents) = store();
        let hash = put(&contents, b"0123456789");
        let mut range = contents.read(&hash, 3, Some(5)).unwrap();
        assert_eq!(range.content_size, 10);
        let mut chunks = Vec::new();
        loop {
            let chunk = range.next_chunk(2).unwrap();
            if chunk.is_empty() {
                break;
            }
            chunks.push(String::from_utf8(chunk).unwrap());
        }
        assert_eq!(chunks, ["34", "56", "7"]);
        assert!(matches!(contents.read(&hash, 11, None), Err(Error::Range { offset: 11, size: 10 })));
        assert!(matches!(contents.read(&ContentHash::of(b"x"), 0, None), Err(Error::NotFound(_))));
    }

    #[test]
    fn a_removed_content_is_gone() {
        let (_folder, contents) = store();
        let hash = put(&contents, b"abc");
        contents.remove(&hash).unwrap();
        contents.remove(&hash).unwrap();
        assert_eq!(contents.committed(&hash).unwrap(), Committed { size: 0, complete: false });
    }

    #[test]
    fn only_contents_that_nobody_touched_are_old() {
        let (_folder, contents) = store();
        let (idle, used) = (put(&contents, b"idle"), put(&contents, b"used"));
        let later = SystemTime::now() + Duration::from_secs(100);
        let path = contents.shared.whole(&idle);
        File::open(path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        contents.touch(&used).unwrap();
        assert_eq!(contents.older(later, Duration::from_secs(1000)).unwrap(), [idle]);
        assert!(matches!(contents.touch(&ContentHash::of(b"x")), Err(Error::NotFound(_))));
    }

    #[test]
    fn only_old_uploads_that_nobody_works_on_are_dropped() {
        let (_folder, contents) = store();
        let (idle, busy) = (ContentHash::of(b"idle"), ContentHash::of(b"busy"));
        contents.upload(idle, 4, 0).unwrap().close().unwrap();
        let mut first = contents.upload(idle, 4, 0).unwrap();
        first.write(b"id").unwrap();
        first.close().unwrap();
        let mut held = contents.upload(busy, 4, 0).unwrap();
        held.write(b"bu").unwrap();
        let later = SystemTime::now() + Duration::from_secs(100);
        assert_eq!(contents.drop_abandoned(later, Duration::from_secs(1000)).unwrap(), 0);
        assert_eq!(contents.drop_abandoned(later, Duration::from_secs(50)).unwrap(), 1);
        held.write(b"sy").unwrap();
        assert!(held.close().unwrap().complete);
    }
}
