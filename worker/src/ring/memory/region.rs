//! The shared memory itself: the words that say which slots are taken, and the slots.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::atomic::{AtomicU32, Ordering, fence},
};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create,
};

use crate::ring::wire::MOST_SEGMENT_BYTES;

/// Payloads that may be on their way at once: those that wait at the receiver, and some that go to and fro.
pub(super) const SLOTS: usize = 16;
/// Of a payload at most.
pub(super) const SLOT_BYTES: usize = MOST_SEGMENT_BYTES as usize;
/// In front of the slots: a word for each, and one that says whether the sender waits. A page.
const HEAD_BYTES: usize = 4096;
/// Each word has a line of the processor's caches for itself.
const WORD_BYTES: usize = 64;
/// Of all.
const BYTES: usize = HEAD_BYTES + SLOTS * SLOT_BYTES;

const _: () = assert!((SLOTS + 1) * WORD_BYTES <= HEAD_BYTES, "there is a word for each slot");

/// Its size is fixed: shrinking it would crash its readers.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Shared memory, mapped.
#[derive(Debug)]
pub(super) struct Region(MmapRaw);

impl Region {
    /// New memory, all of it there, and what to hand over.
    ///
    /// # Errors
    /// The system does not give it.
    pub(super) fn make() -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create("ringtune-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // Memory that is missing is missed here, and not where a payload is written.
        fallocate(&file, FallocateFlags::empty(), 0, BYTES as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Self::map(&file)?, file))
    }

    /// Memory that somebody else made.
    ///
    /// # Errors
    /// It is not as [`Region::make`] makes it, or cannot be mapped.
    pub(super) fn open(file: &OwnedFd) -> io::Result<Self> {
        let bytes = fstat(file)?.st_size;
        if usize::try_from(bytes) != Ok(BYTES) {
            let problem = format!("it has {bytes} bytes, not {BYTES}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        if !fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it may be made smaller while it is used",
            ));
        }
        Self::map(file)
    }

    fn map(file: &OwnedFd) -> io::Result<Self> {
        let file = File::from(file.try_clone()?);
        Ok(Self(MmapOptions::new().len(BYTES).map_raw(&file)?))
    }

    /// Not 0: the slot has a payload that was not used yet.
    pub(super) fn taken(&self, slot: usize) -> &AtomicU32 {
        self.word(slot.min(SLOTS - 1))
    }

    /// Not 0: the sender waits for a slot.
    pub(super) fn is_waited_for(&self) -> &AtomicU32 {
        self.word(SLOTS)
    }

    /// `index`: at most [`SLOTS`].
    fn word(&self, index: usize) -> &AtomicU32 {
        // SAFETY: a word lies within the head, which is mapped as long as this lives, on a multiple of its size; both processes
        // touch it atomically alone.
        unsafe { AtomicU32::from_ptr(self.0.as_mut_ptr().add(index * WORD_BYTES).cast()) }
    }

    fn slot(&self, slot: usize, length: usize) -> *mut u8 {
        assert!(slot < SLOTS && length <= SLOT_BYTES, "slot {slot} with {length} bytes");
        // SAFETY: it lies within the mapping.
        unsafe { self.0.as_mut_ptr().add(HEAD_BYTES + slot * SLOT_BYTES) }
    }

    /// Writes a slot that is not taken.
    pub(super) fn write(&self, slot: usize, payload: &[u8]) {
        let start = self.slot(slot, payload.len());
        // SAFETY: there is room; the payload lies elsewhere. The one sender writes only what is not taken, and the receiver
        // reads only what is.
        unsafe { start.copy_from_nonoverlapping(payload.as_ptr(), payload.len()) };
        fence(Ordering::Release);
    }

    /// Reads a slot that is taken.
    pub(super) fn read(&self, slot: usize, length: usize) -> &[u8] {
        let start = self.slot(slot, length);
        // SAFETY: it lies within the mapping, which cannot become smaller. The sender does not write a slot that is taken, and this
        // side has it taken as long as it reads it. A sender that did so all the same is a process of this user, which could
        // write all of this one's memory: it would damage numbers, which their checksum tells.
        unsafe { std::slice::from_raw_parts(start, length) }
    }
}
