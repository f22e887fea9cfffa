//! Memory that two ring neighbours of one machine share: what is large lies there, and only where it lies goes through the
//! socket between them. That leaves one copy, into this memory; what came is added up from where it lies.
//!
//! The sender makes the memory, and hands it over with its connection. It has **slots**, one for each payload on the way. The
//! sender takes a free one, writes a payload into it, and names it in the chunk; the receiver lets go of it once it has used the
//! numbers. The first slot that is free is taken, so that where both keep up a few slots are used over and over, which stay in
//! the processor's caches. Where none is free the sender waits until the receiver writes a byte to a pipe.
//!
//! What came may be kept for long: it waits for a rank that computes, or goes on to the next one. Were all slots kept so by
//! all ranks of a ring, each would wait for the next one. So the receiver keeps some of them alone, and copies the rest out.

mod region;

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ringtune_proto::v1::RingSlot;
use ringtune_security::Handed;
use ringtune_shared::ring::{Lender, Loan, Payload, Pool};
use tokio::net::unix::pipe;

use self::region::{Region, SLOT_BYTES, SLOTS};

/// Smaller payloads go through the socket itself.
pub(super) const LEAST_BYTES: usize = 16 << 10;
/// Slots that wait at the receiver until their numbers are used. What comes beyond is copied out. With half as many slots a sum
/// of 25 MB took a quarter more of the processors, as much of it was copied out.
const MOST_LENT: usize = SLOTS - 4;
/// Number of reused buffers of copied payloads: more do not wait at once, by the ring's own bounds.
const COPIES: usize = 32;
/// Bytes that say nothing but that there are some: as many as may wait unread.
const MOST_WAKES: usize = 64;

/// The sender's side.
#[derive(Debug)]
pub(super) struct Sending {
    region: Region,
    /// Readable once a slot became free that was waited for.
    freed: pipe::Receiver,
}

/// The sender's offer.
pub(super) struct Offer {
    memory: OwnedFd,
    freed: OwnedFd,
}

impl Offer {
    /// In the order in which [`Receiving::of`] takes them.
    pub(super) fn files(&self) -> [BorrowedFd<'_>; 2] {
        [self.memory.as_fd(), self.freed.as_fd()]
    }
}

impl Sending {
    /// Makes the memory, and what is to be handed over. Within the runtime that the stream is in.
    ///
    /// # Errors
    /// The system does not give it.
    pub(super) fn make() -> io::Result<(Self, Offer)> {
        let (region, memory) = Region::make()?;
        let (writes, reads) = pipe::pipe()?;
        let freed = writes.into_nonblocking_fd()?;
        Ok((Self { region, freed: reads }, Offer { memory, freed }))
    }

    /// Puts a payload of at most [`SLOT_BYTES`] into a slot; waits until one is free.
    ///
    /// # Errors
    /// The pipe is broken.
    pub(super) async fn put(&mut self, payload: &[u8]) -> io::Result<RingSlot> {
        loop {
            if let Some(slot) = self.put_now(payload) {
                return Ok(slot);
            }
            // A release from here on is signalled; the second look sees earlier ones.
            self.region.is_waited_for().store(1, Ordering::SeqCst);
            if let Some(slot) = self.put_now(payload) {
                return Ok(slot);
            }
            self.freed.readable().await?;
            match self.freed.try_read(&mut [0; MOST_WAKES]) {
                Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    }

    fn put_now(&self, payload: &[u8]) -> Option<RingSlot> {
        let free = (0..SLOTS).find(|slot| self.region.taken(*slot).load(Ordering::SeqCst) == 0)?;
        self.region.write(free, payload);
        self.region.taken(free).store(1, Ordering::SeqCst);
        Some(RingSlot { number: free as u32, bytes: payload.len() as u32 })
    }
}

/// The receiver's side.
#[derive(Debug)]
pub(super) struct Receiving {
    shared: Arc<Shared>,
    copies: Pool,
}

#[derive(Debug)]
struct Shared {
    region: Region,
    freed: OwnedFd,
    /// Loans of each slot here: a sender cannot have one lent for two payloads.
    lent: [AtomicUsize; SLOTS],
}

/// Why memory or a slot is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("the memory that came with the connection cannot be used: {0}")]
    Memory(#[from] io::Error),
    #[error("a chunk lies in shared memory, and the connection came with none")]
    None,
    #[error("a chunk lies in slot {number} with {bytes} bytes; allowed: slots 0 to {most} with 1 to {SLOT_BYTES} bytes", most = SLOTS - 1)]
    NoSlot { number: u32, bytes: u32 },
    #[error("a chunk lies in slot {0}, which has another one")]
    Taken(u32),
}

impl Receiving {
    /// Of what came with a connection. None: nothing did.
    ///
    /// # Errors
    /// It is no such memory, or it cannot be mapped.
    pub(super) fn of(handed: &Handed) -> Result<Option<Self>, Unusable> {
        let [memory, freed] = handed.files() else { return Ok(None) };
        let region = Region::open(memory)?;
        let freed = freed.try_clone()?;
        let shared = Arc::new(Shared { region, freed, lent: Default::default() });
        Ok(Some(Self { shared, copies: Pool::new(COPIES) }))
    }

    /// The payload of a slot. The slot is released with its last loan, or at once if too many are kept.
    ///
    /// # Errors
    /// There is no such slot, or nothing was put into it.
    pub(super) fn take(&mut self, slot: RingSlot) -> Result<Payload, Unusable> {
        let RingSlot { number, bytes } = slot;
        let (index, length) = (number as usize, bytes as usize);
        let Self { shared, copies } = self;
        let lent = shared.lent.get(index).filter(|_| (1..=SLOT_BYTES).contains(&length));
        let lent = lent.ok_or(Unusable::NoSlot { number, bytes })?;
        let is_free = || lent.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if shared.region.taken(index).load(Ordering::SeqCst) == 0 || !is_free() {
            return Err(Unusable::Taken(number));
        }
        let kept = shared.lent.iter().filter(|lent| lent.load(Ordering::Relaxed) > 0).count();
        let loan = Loan::new(shared.clone(), index, length);
        if kept > MOST_LENT {
            return Ok(copies.fill(length, |copy| copy.extend_from_slice(&loan)).into());
        }
        Ok(Payload::Lent(loan))
    }
}

impl Lender for Shared {
    fn part(&self, slot: usize) -> &[u8] {
        self.region.read(slot, SLOT_BYTES)
    }

    fn lend_again(&self, slot: usize) {
        if let Some(lent) = self.lent.get(slot) {
            lent.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn take_back(&self, slot: usize) {
        let Self { region, freed, lent } = self;
        // All others have read it before the last one releases it.
        if lent.get(slot).is_none_or(|lent| lent.fetch_sub(1, Ordering::AcqRel) > 1) {
            return;
        }
        region.taken(slot).store(0, Ordering::SeqCst);
        if region.is_waited_for().swap(0, Ordering::SeqCst) != 0 {
            // A full pipe says it already, and nobody waits at a broken one.
            let _ = rustix::io::write(freed, &[1]);
        }
    }
}

#[cfg(test)]
mod tests;
