//! How much of the disk contents may take.

use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::Error;

/// What may be taken. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomLimits {
    /// Of all contents, those that are not whole yet included; 0: as many as the disk has.
    pub all_contents: u64,
    /// That must stay free on the disk.
    pub left_free: u64,
}

/// Counts what contents take, and what uploads under way have been promised.
#[derive(Debug)]
pub(super) struct Room {
    limits: RoomLimits,
    taken: Mutex<Taken>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    stored: u64,
    promised: u64,
}

impl Room {
    /// `stored`: bytes that contents take already.
    pub(super) fn new(limits: RoomLimits, stored: u64) -> Self {
        Self { limits, taken: Mutex::new(Taken { stored, promised: 0 }) }
    }

    /// How many bytes lack for `bytes` more in `folder`: of those that contents may take, or of those that the disk has.
    pub(super) fn lacking(&self, folder: &Path, bytes: u64) -> Result<u64, Error> {
        let free = free_bytes(folder)?;
        let taken = self.taken();
        let RoomLimits { all_contents, left_free } = self.limits;
        let after = taken.stored.saturating_add(taken.promised).saturating_add(bytes);
        let over = if all_contents > 0 { after.saturating_sub(all_contents) } else { 0 };
        let wanted = bytes.saturating_add(taken.promised).saturating_add(left_free);
        Ok(over.max(wanted.saturating_sub(free)))
    }

    /// Promises room for `bytes` more in `folder`.
    pub(super) fn promise(&self, folder: &Path, bytes: u64) -> Result<(), Error> {
        // Asked before the lock: it may take a while.
        let free = free_bytes(folder)?;
        let mut taken = self.taken();
        let RoomLimits { all_contents, left_free } = self.limits;
        let after = taken.stored.saturating_add(taken.promised).saturating_add(bytes);
        if all_contents > 0 && after > all_contents {
            return Err(Error::Quota {
                given: bytes,
                taken: taken.stored + taken.promised,
                limit: all_contents,
            });
        }
        // What was promised before is not written yet: it is still free.
        if left_free > 0 && free < bytes.saturating_add(taken.promised).saturating_add(left_free) {
            return Err(Error::TooLittleFree { given: bytes, free, limit: left_free });
        }
        taken.promised += bytes;
        Ok(())
    }

    /// Some of what was promised is written.
    pub(super) fn wrote(&self, bytes: u64) {
        let mut taken = self.taken();
        taken.promised = taken.promised.saturating_sub(bytes);
        taken.stored += bytes;
    }

    /// Some of what was promised is not needed.
    pub(super) fn give_back(&self, bytes: u64) {
        let mut taken = self.taken();
        taken.promised = taken.promised.saturating_sub(bytes);
    }

    /// Some of what was stored is removed.
    pub(super) fn removed(&self, bytes: u64) {
        let mut taken = self.taken();
        taken.stored = taken.stored.saturating_sub(bytes);
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Two numbers, changed in single steps.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn free_bytes(folder: &Path) -> Result<u64, Error> {
    let about = rustix::fs::statvfs(folder).map_err(|error| Error::io("read", folder)(error.into()))?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_together_stay_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let room = Room::new(RoomLimits { all_contents: 100, left_free: 0 }, 40);
        room.promise(folder.path(), 50).unwrap();
        let refused = room.promise(folder.path(), 11).unwrap_err();
        assert!(matches!(refused, Error::Quota { given: 11, taken: 90, limit: 100 }), "{refused}");
        room.promise(folder.path(), 10).unwrap();
        room.wrote(60);
        assert!(room.promise(folder.path(), 1).is_err());
        room.removed(60);
        room.promise(folder.path(), 60).unwrap();
        room.give_back(60);
        room.promise(folder.path(), 60).unwrap();
    }

    #[test]
    fn some_of_the_disk_stays_free() {
        let folder = tempfile::tempdir().unwrap();
        let all = Room::new(RoomLimits { all_contents: 0, left_free: u64::MAX / 2 }, 0);
        assert!(matches!(all.promise(folder.path(), 1), Err(Error::TooLittleFree { given: 1, .. })));
        let one = Room::new(RoomLimits { all_contents: 0, left_free: 1 }, 0);
        one.promise(folder.path(), 1).unwrap();
        // What was promised before counts as used.
        let free = free_bytes(folder.path()).unwrap();
        assert!(one.promise(folder.path(), free.saturating_mul(2)).is_err());
    }
}
