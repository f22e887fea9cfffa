//! Files addressed by their content's SHA-256, in a local folder.
//!
//! ```text
//! ROOT/sha256/ab/abcd…   whole contents; the name is the hash, so a file never changes
//! ROOT/partial/abcd…     uploads that are under way or broke off
//! ROOT/trash/DAY/…       what was let go of, for days (see [`LetGo`])
//! ROOT/store-id          whose database knows these contents (see `crate::opening`)
//! ```
//!
//! Invariant: a file below `sha256/` is whole, its hash was checked, and it is on disk: it gets there by a rename
//! of a synced file.
//! Invariant: what is in the trash goes for good when its days are over, or where room is needed that it may make; what is
//! removed without it is a file that its own job replaced ([`Contents::remove`]), or not what its name says
//! ([`Contents::remove_damaged`]).
//!
//! Everything here blocks: call it from a blocking thread.

mod claims;
mod error;
mod room;
mod trash;
mod upload;

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use ringtune_shared::{files::rename_durably, ids::ContentHash};
use tokio::sync::Notify;
use tracing::{info, warn};

pub use claims::{Claim, Claims};
pub use error::Error;
use room::Room;
pub use room::RoomLimits;
pub use trash::LetGo;
use trash::{Trash, sync};
pub use upload::Upload;

/// What a store accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one content.
    pub content_bytes: u64,
    /// Uploads under way at a time.
    pub uploads: usize,
    /// What all of them may take.
    pub room: RoomLimits,
    /// Whole days for which the trash keeps what was let go of.
    pub trash_days: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { content_bytes: 64 << 30, uploads: 64, room: RoomLimits::default(), trash_days: 7 }
    }
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

impl Read for Range {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.file.read(buffer)
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
    /// Told whenever one of them ends.
    upload_ended: Notify,
    room: Room,
    trash: Trash,
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
        make_folders(root)?;
        // Counted only where it is limited: it takes a look at every file.
        let trash = Trash::new(root.join("trash"));
        let stored = if limits.room.all_contents > 0 { stored_bytes(root)? + trash.bytes()? } else { 0 };
        let shared = Shared {
            root: root.to_path_buf(),
            limits,
            under_way: Mutex::new(HashSet::new()),
            upload_ended: Notify::new(),
            room: Room::new(limits.room, stored),
            trash,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Whether there are contents in a folder, or in its trash. It need not be there.
    ///
    /// # Errors
    /// The file system's.
    pub fn has_files(root: &Path) -> Result<bool, Error> {
        for folder in trash::paths(&root.join("sha256"))? {
            if !trash::paths(&folder)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(!Trash::new(root.join("trash")).all()?.is_empty())
    }

    /// Told whenever an upload ends: what was [`Error::Busy`] may go on.
    pub fn upload_ended(&self) -> &Notify {
        &self.shared.upload_ended
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
        self.check_size(size)?;
        Upload::begin(self.shared.clone(), hash, size, offset)
    }

    /// Refuses a content that is larger than any may be.
    ///
    /// # Errors
    /// It is.
    pub fn check_size(&self, size: u64) -> Result<(), Error> {
        let limit = self.shared.limits.content_bytes;
        if size > limit { Err(Error::TooLarge { given: size, limit }) } else { Ok(()) }
    }

    /// Whether not even a part of a content is here.
    ///
    /// # Errors
    /// The file system's.
    pub fn is_absent(&self, hash: &ContentHash) -> Result<bool, Error> {
        // In the order in which a content moves.
        Ok(length(&self.shared.partial(hash))?.is_none() && length(&self.shared.whole(hash))?.is_none())
    }

    /// Removes a content whose bytes do not have its hash any more. One that is not here is not an error. Reads all of it.
    ///
    /// # Errors
    /// Somebody is uploading it, too many upload, the file system's.
    pub fn remove_damaged(&self, hash: ContentHash) -> Result<(), Error> {
        Upload::remove_damaged(self.shared.clone(), hash)
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

    /// Moves contents that nobody refers to any more into the trash. Those that are not here are none. How many there were.
    ///
    /// # Errors
    /// The file system's.
    pub fn let_go(&self, contents: &[ContentHash], why: LetGo, now: SystemTime) -> Result<usize, Error> {
        let mut left = HashSet::new();
        let mut count = 0;
        for hash in contents {
            let path = self.shared.whole(hash);
            if length(&path)?.is_none() {
                continue;
            }
            let place = self.shared.trash.place(why, now)?;
            let target = place.join(hash.to_string());
            let before = length(&target)?;
            fs::rename(&path, &target).map_err(Error::io("move into the trash", path.clone()))?;
            self.shared.room.removed(before.unwrap_or(0));
            left.extend(path.parent().map(Path::to_owned));
            left.insert(place);
            count += 1;
        }
        left.iter().try_for_each(|folder| sync(folder))?;
        Ok(count)
    }

    /// What is in the trash and not beside it.
    ///
    /// # Errors
    /// The file system's.
    pub fn trashed(&self) -> Result<Vec<ContentHash>, Error> {
        let mut trashed = Vec::new();
        for hash in self.shared.trash.all()? {
            if length(&self.shared.whole(&hash))?.is_none() {
                trashed.push(hash);
            }
        }
        Ok(trashed)
    }

    /// Takes a content back out of the trash; whether it is here now. Reads all of it: one that is damaged stays where it is.
    ///
    /// # Errors
    /// The file system's.
    pub fn take_back(&self, hash: &ContentHash) -> Result<bool, Error> {
        let whole = self.shared.whole(hash);
        if length(&whole)?.is_some() {
            return Ok(true);
        }
        for path in self.shared.trash.find(hash)? {
            if upload::hash_of_file(&path)? == *hash {
                rename_durably(&path, &whole)?;
                return Ok(true);
            }
            warn!(file = %path.display(), "a content in the trash is damaged: it is not taken back");
        }
        Ok(false)
    }

    /// Removes for good what was let go of at least [`Limits::trash_days`] whole days ago. How many contents, and their bytes.
    ///
    /// # Errors
    /// The file system's.
    pub fn empty_trash(&self, now: SystemTime) -> Result<(u64, u64), Error> {
        let removed = self.shared.trash.remove_old(now, self.shared.limits.trash_days)?;
        self.shared.room.removed(removed.1);
        Ok(removed)
    }

    /// Removes for good what is in the trash and may make room, the oldest first, until `bytes` were freed. How many were.
    ///
    /// # Errors
    /// The file system's.
    pub fn make_room(&self, bytes: u64, now: SystemTime) -> Result<u64, Error> {
        self.shared.make_room(bytes, now)
    }

    /// Removes a content for good whose own job replaced it, as it does with recovery points every minute. One that is not
    /// here is not an error.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove(&self, hash: &ContentHash) -> Result<(), Error> {
        let path = self.shared.whole(hash);
        let Some(size) = length(&path)? else { return Ok(()) };
        match fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => {
                removed.map_err(Error::io("remove", path))?;
                self.shared.room.removed(size);
                Ok(())
            }
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

    /// Whether a content is here and was marked as used for the last time at least `age` before `now`, or never.
    ///
    /// # Errors
    /// The file system's.
    pub fn is_older(&self, hash: &ContentHash, now: SystemTime, age: Duration) -> Result<bool, Error> {
        let path = self.shared.whole(hash);
        match fs::metadata(&path).and_then(|metadata| metadata.modified()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            modified => {
                let modified = modified.map_err(Error::io("read", path))?;
                Ok(now.duration_since(modified).is_ok_and(|idle| idle >= age))
            }
        }
    }

    /// Contents that were marked as used for the last time at least `age` before `now`, or never. What comes while this
    /// looks may be among them or not.
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
                let modified = match entry.metadata().and_then(|metadata| metadata.modified()) {
                    // Removed meanwhile.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    modified => modified.map_err(Error::io("read", entry.path()))?,
                };
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
            let metadata = match fs::metadata(&path) {
                // Became whole meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                metadata => metadata.map_err(Error::io("read", path.clone()))?,
            };
            let modified = metadata.modified().map_err(Error::io("read", path.clone()))?;
            if now.duration_since(modified).is_ok_and(|idle| idle >= age) {
                fs::remove_file(&path).map_err(Error::io("remove", path))?;
                self.shared.room.removed(metadata.len());
                dropped += 1;
            }
        }
        Ok(dropped)
    }
}

impl Shared {
    /// Promises room for `bytes` more, for which the trash goes if need be.
    fn promise(&self, bytes: u64) -> Result<(), Error> {
        let folder = self.part_folder();
        loop {
            let lacking = self.room.lacking(&folder, bytes)?;
            if lacking == 0 || self.make_room(lacking, SystemTime::now())? == 0 {
                return self.room.promise(&folder, bytes);
            }
        }
    }

    fn make_room(&self, bytes: u64, now: SystemTime) -> Result<u64, Error> {
        let (contents, freed) = self.trash.make_room(bytes, now)?;
        self.room.removed(freed);
        if contents > 0 {
            info!(contents, bytes = freed, "emptied the trash before its time: room was needed");
        }
        Ok(freed)
    }

    fn whole(&self, hash: &ContentHash) -> PathBuf {
        let name = hash.to_string();
        self.root.join("sha256").join(name.get(..2).unwrap_or("")).join(name)
    }

    fn part_folder(&self) -> PathBuf {
        self.root.join("partial")
    }

    fn partial(&self, hash: &ContentHash) -> PathBuf {
        self.part_folder().join(hash.to_string())
    }

    fn under_way(&self) -> MutexGuard<'_, HashSet<ContentHash>> {
        // A set of hashes is whole whatever happened to the thread that held it.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes every folder that a content can be in, on the disk for good: a content is safe as soon as it has its name.
fn make_folders(root: &Path) -> Result<(), Error> {
    let contents = root.join("sha256");
    for first in 0..=u8::MAX {
        let folder = contents.join(format!("{first:02x}"));
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made.map_err(Error::io("create", folder))?,
        }
    }
    [contents.as_path(), root].into_iter().try_for_each(sync)
}

/// Bytes of all contents and parts of contents.
fn stored_bytes(root: &Path) -> Result<u64, Error> {
    let read = |folder: &Path| fs::read_dir(folder).map_err(Error::io("read", folder));
    let mut folders = vec![root.join("partial")];
    for folder in read(&root.join("sha256"))? {
        folders.push(folder.map_err(Error::io("read", root))?.path());
    }
    let mut bytes = 0;
    for folder in folders {
        for entry in read(&folder)? {
            let metadata = entry.and_then(|entry| entry.metadata());
            bytes += metadata.map_err(Error::io("read", folder.clone()))?.len();
        }
    }
    Ok(bytes)
}

/// A file's bytes; none where there is no file.
fn length(path: &Path) -> Result<Option<u64>, Error> {
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        metadata => Ok(Some(metadata.map_err(Error::io("read", path))?.len())),
    }
}

#[cfg(test)]
pub(crate) mod tests;
