//! One content on its way in.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    sync::Arc,
    time::SystemTime,
};

use ringtune_shared::{
    files::rename_durably,
    ids::{ContentHash, ContentHasher},
};

use super::{Committed, Error, Shared, length};

/// Takes a content's bytes in order. Dropped or closed before the end it keeps what came, to go on later.
#[derive(Debug)]
pub struct Upload {
    shared: Arc<Shared>,
    hash: ContentHash,
    size: u64,
    committed: u64,
    /// Bytes that there is room for and that did not come yet.
    promised: u64,
    /// None: the content was here already.
    file: Option<File>,
}

impl Upload {
    pub(super) fn begin(
        shared: Arc<Shared>,
        hash: ContentHash,
        size: u64,
        offset: u64,
    ) -> Result<Self, Error> {
        let mut upload = Self::alone(shared, hash, size)?;
        upload.open(offset)?;
        Ok(upload)
    }

    /// Removes a content that is not what its name says: the disk, or somebody, changed it.
    pub(super) fn remove_damaged(shared: Arc<Shared>, hash: ContentHash) -> Result<(), Error> {
        let path = shared.whole(&hash);
        // Nobody puts a good one in its place between the look and the removal.
        let alone = Self::alone(shared, hash, 0)?;
        let Some(size) = length(&path)? else { return Ok(()) };
        if hash_of_file(&path)? != hash {
            fs::remove_file(&path).map_err(Error::io("remove", path))?;
            alone.shared.room.removed(size);
        }
        Ok(())
    }

    /// Takes the only place at a content, which dropping it gives free again.
    fn alone(shared: Arc<Shared>, hash: ContentHash, size: u64) -> Result<Self, Error> {
        {
            let mut under_way = shared.under_way();
            if under_way.contains(&hash) {
                return Err(Error::Busy(hash));
            }
            let limit = shared.limits.uploads;
            if under_way.len() >= limit {
                return Err(Error::TooManyUploads { limit });
            }
            under_way.insert(hash);
        }
        Ok(Self { shared, hash, size, committed: 0, promised: 0, file: None })
    }

    fn open(&mut self, offset: u64) -> Result<(), Error> {
        if let Some(actual) = length(&self.shared.whole(&self.hash))? {
            self.committed = actual;
            return match actual == self.size {
                true => Ok(()),
                false => Err(Error::Size { given: self.size, actual }),
            };
        }
        let path = self.shared.partial(&self.hash);
        let mut committed = length(&path)?.unwrap_or(0);
        if committed > self.size {
            // Left by somebody who named another size: of no use to anyone.
            fs::remove_file(&path).map_err(Error::io("remove", path.clone()))?;
            self.shared.room.removed(committed);
            committed = 0;
        }
        if offset != committed {
            return Err(Error::Offset { given: offset, committed });
        }
        self.shared.promise(self.size - committed)?;
        self.promised = self.size - committed;
        let file =
            OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io("open", path))?;
        self.file = Some(file);
        self.committed = committed;
        Ok(())
    }

    /// Adds bytes. Those of a content that was here already are passed over.
    ///
    /// # Errors
    /// More bytes than the size; the file system's: what came before stays.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let committed = self.committed + bytes.len() as u64;
        if committed > self.size {
            return Err(Error::TooLong { size: self.size });
        }
        let path = self.shared.partial(&self.hash);
        if let Err(cause) = file.write_all(bytes) {
            // Part of the bytes may be there: the file is to be as long as what was acknowledged.
            let _ = file.set_len(self.committed);
            return Err(Error::io("write", path)(cause));
        }
        self.committed = committed;
        let came = bytes.len() as u64;
        self.promised -= came;
        self.shared.room.wrote(came);
        Ok(())
    }

    /// Ends this stream: the whole content is checked and moved to its place, a part is kept.
    ///
    /// # Errors
    /// The hash is another one (then nothing is kept), the file system's.
    pub fn close(mut self) -> Result<Committed, Error> {
        let Some(file) = self.file.take() else {
            return Ok(Committed { size: self.committed, complete: true });
        };
        let path = self.shared.partial(&self.hash);
        file.sync_all().map_err(Error::io("sync", path.clone()))?;
        drop(file);
        if self.committed < self.size {
            return Ok(Committed { size: self.committed, complete: false });
        }
        let found = hash_of_file(&path)?;
        if found != self.hash {
            fs::remove_file(&path).map_err(Error::io("remove", path))?;
            self.shared.room.removed(self.committed);
            return Err(Error::HashMismatch { expected: self.hash, found });
        }
        // Nobody has asked for it yet: whoever wants it to stay without a job says so (`Contents::touch`).
        let opened = File::options().append(true).open(&path);
        let marked = opened.and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH));
        marked.map_err(Error::io("write", path.clone()))?;
        rename_durably(&path, &self.shared.whole(&self.hash))?;
        Ok(Committed { size: self.committed, complete: true })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.shared.under_way().remove(&self.hash);
        self.shared.room.give_back(self.promised);
        self.shared.upload_ended.notify_waiters();
    }
}

pub(super) fn hash_of_file(path: &std::path::Path) -> Result<ContentHash, Error> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let mut hasher = ContentHasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer).map_err(Error::io("read", path))?;
        if count == 0 {
            return Ok(hasher.finish());
        }
        hasher.update(&buffer[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Contents, Limits, RoomLimits};
    use super::*;

    const ROOM: RoomLimits = RoomLimits { all_contents: 0, left_free: 0 };
    const LIMITS: Limits = Limits { content_bytes: 1000, uploads: 2, room: ROOM, trash_days: 7 };

    fn store() -> (tempfile::TempDir, Contents) {
        let folder = tempfile::tempdir().unwrap();
        let contents = Contents::open(folder.path(), LIMITS).unwrap();
        (folder, contents)
    }

    #[test]
    fn an_upload_that_broke_off_goes_on_where_it_was() {
        let (folder, contents) = store();
        let hash = ContentHash::of(b"hello world");
        let mut upload = contents.upload(hash, 11, 0).unwrap();
        upload.write(b"hello").unwrap();
        drop(upload);
        // After a restart, too.
        drop(contents);
        let contents = Contents::open(folder.path(), LIMITS).unwrap();
        assert_eq!(contents.committed(&hash).unwrap(), Committed { size: 5, complete: false });
        let wrong = contents.upload(hash, 11, 0).unwrap_err();
        assert!(matches!(wrong, Error::Offset { given: 0, committed: 5 }));
        let mut upload = contents.upload(hash, 11, 5).unwrap();
        upload.write(b" world").unwrap();
        assert_eq!(upload.close().unwrap(), Committed { size: 11, complete: true });
        let again = contents.upload(hash, 11, 0).unwrap();
        assert!(again.close().unwrap().complete);
    }

    #[test]
    fn other_bytes_than_named_leave_nothing() {
        let (_folder, contents) = store();
        let hash = ContentHash::of(b"right");
        let mut upload = contents.upload(hash, 5, 0).unwrap();
        upload.write(b"wrong").unwrap();
        assert!(matches!(upload.close(), Err(Error::HashMismatch { .. })));
        assert_eq!(contents.committed(&hash).unwrap(), Committed { size: 0, complete: false });
    }

    #[test]
    fn sizes_and_numbers_are_bounded() {
        let (_folder, contents) = store();
        let hash = |name: &str| ContentHash::of(name.as_bytes());
        assert!(matches!(contents.upload(hash("a"), 1001, 0), Err(Error::TooLarge { .. })));
        let mut first = contents.upload(hash("a"), 2, 0).unwrap();
        assert!(matches!(first.write(b"abc"), Err(Error::TooLong { size: 2 })));
        assert!(matches!(contents.upload(hash("a"), 2, 0), Err(Error::Busy(_))));
        let _second = contents.upload(hash("b"), 2, 0).unwrap();
        assert!(matches!(contents.upload(hash("c"), 2, 0), Err(Error::TooManyUploads { limit: 2 })));
        drop(first);
        assert!(contents.upload(hash("c"), 2, 0).is_ok());
    }

    #[test]
    fn a_damaged_content_is_removed_and_comes_anew() {
        let (_folder, contents) = store();
        let hash = ContentHash::of(b"whole");
        let send = || {
            let mut upload = contents.upload(hash, 5, 0).unwrap();
            upload.write(b"whole").unwrap();
            upload.close().unwrap()
        };
        send();
        contents.remove_damaged(hash).unwrap();
        assert!(contents.committed(&hash).unwrap().complete, "it is as it was");
        for damage in [&b"whale"[..], b"who"] {
            fs::write(contents.shared.whole(&hash), damage).unwrap();
            contents.remove_damaged(hash).unwrap();
            assert_eq!(contents.committed(&hash).unwrap(), Committed { size: 0, complete: false });
            assert!(send().complete);
        }
        let other = contents.upload(hash, 5, 0).unwrap();
        assert!(matches!(contents.remove_damaged(hash), Err(Error::Busy(_))));
        drop(other);
        contents.remove_damaged(ContentHash::of(b"not here")).unwrap();
    }

    #[test]
    fn an_empty_content_is_a_content() {
        let (_folder, contents) = store();
        let hash = ContentHash::of(b"");
        assert!(contents.upload(hash, 0, 0).unwrap().close().unwrap().complete);
        assert!(contents.committed(&hash).unwrap().complete);
    }
}
