//! A buffer whose parts are sent from where they lie, while others of it are written. Whose memory it is does not matter: it
//! goes in and comes back.
//!
//! A collective cuts its buffer into **slots**, one for each segment that travels. A slot that is lent is read by whoever
//! sends it, perhaps on another thread, and stays as it is until all of its loan is dropped.
//!
//! Invariant: nothing writes a segment that is on its way. A collective runs in the runtime in which its ring began,
//! and lends the buffer that it was given instead of copying it. This is the only `unsafe` of the crate.

use std::cell::UnsafeCell;
use std::ops::{DerefMut, Range};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::{Lender, Loan, Payload, chunk_of};

// Lent memory travels as it lies.
const _: () = assert!(cfg!(target_endian = "little"), "numbers travel little-endian");

/// Numbers as they travel.
pub(super) fn bytes_of(numbers: &[f32]) -> &[u8] {
    // SAFETY: it is the same memory for as long; numbers have no padding, and bytes lie anywhere.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// Memory of numbers that a collective takes and gives back.
pub trait Buffer: DerefMut<Target = [f32]> + Send + Sync + 'static {}

impl<B: DerefMut<Target = [f32]> + Send + Sync + 'static> Buffer for B {}

/// Of which place in the buffer a slot is: chunk after chunk of [`chunk_of`], each cut into segments.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) length: usize,
    pub(super) chunks: usize,
    /// Chunks begin at multiples of it.
    pub(super) granule: usize,
    pub(super) segment_floats: usize,
}

impl Cut {
    /// Slots of every chunk; of a chunk that is shorter the last ones are empty.
    fn slots_of_a_chunk(self) -> usize {
        // The first chunk is the longest.
        self.chunk(0).len().div_ceil(self.segment_floats)
    }

    /// The numbers of a chunk.
    pub(super) fn chunk(self, number: usize) -> Range<usize> {
        chunk_of(number, self.chunks, self.length, self.granule)
    }

    fn slots(self) -> usize {
        self.chunks * self.slots_of_a_chunk()
    }

    /// The numbers of a slot: no two slots have one in common.
    fn place(self, slot: usize) -> Range<usize> {
        let each = self.slots_of_a_chunk().max(1);
        let chunk = self.chunk(slot / each);
        let start = chunk.end.min(chunk.start + slot % each * self.segment_floats);
        start..chunk.end.min(start + self.segment_floats)
    }

    /// The slot of a chunk's segment.
    pub(super) fn slot(self, chunk: usize, segment: usize) -> usize {
        chunk * self.slots_of_a_chunk() + segment
    }
}

/// The buffer, held by its writer.
pub(super) struct Lending<B: Buffer> {
    shared: Arc<Shared<B>>,
}

struct Shared<B> {
    /// Not touched but through `start` while this is shared.
    buffer: UnsafeCell<B>,
    /// Its numbers, which may lie in the buffer itself: this is where it stays.
    start: *mut f32,
    cut: Cut,
    /// Loans of each slot.
    lent: Box<[AtomicUsize]>,
    /// Loans of all slots.
    count: AtomicUsize,
    returned: Notify,
}

// SAFETY: `start` points to what `buffer` owns, plain numbers. A slot is written by the one `Lending` alone, through `&mut`,
// while it is not lent, and read by its loans alone while it is; `lent` hands it over, with release and acquire. Nobody gets
// at the buffer itself but whoever has it last, perhaps on another thread.
unsafe impl<B: Send> Send for Shared<B> {}
// SAFETY: as above.
unsafe impl<B: Send> Sync for Shared<B> {}

impl<B: Buffer> Lending<B> {
    /// `cut`: of this buffer.
    pub(super) fn new(buffer: B, cut: Cut) -> Self {
        let mut shared = Arc::new(Shared {
            buffer: UnsafeCell::new(buffer),
            start: ptr::null_mut(),
            cut: Cut { length: 0, ..cut },
            lent: Box::default(),
            count: AtomicUsize::new(0),
            returned: Notify::new(),
        });
        // Not shared yet.
        if let Some(shared) = Arc::get_mut(&mut shared) {
            let numbers: &mut [f32] = shared.buffer.get_mut();
            (shared.start, shared.cut.length) = (numbers.as_mut_ptr(), numbers.len());
            shared.lent = (0..shared.cut.slots()).map(|_| AtomicUsize::new(0)).collect();
        }
        Self { shared }
    }

    /// The numbers of a slot, mutable. None: it is lent, or does not exist.
    pub(super) fn write(&mut self, slot: usize) -> Option<&mut [f32]> {
        // Acquire: its reader has finished.
        if self.shared.lent.get(slot)?.load(Ordering::Acquire) > 0 {
            return None;
        }
        let place = self.shared.cut.place(slot);
        // SAFETY: the place is within the buffer; no slot shares a number with another one, this one is not lent, and
        // nobody else can lend or write it while `self` is borrowed.
        Some(unsafe { std::slice::from_raw_parts_mut(self.shared.start.add(place.start), place.len()) })
    }

    /// The numbers of a slot. None: there is no such slot.
    pub(super) fn read(&self, slot: usize) -> Option<&[f32]> {
        self.shared.lent.get(slot)?;
        let place = self.shared.cut.place(slot);
        // SAFETY: the place is within the buffer, and nobody can write it while `self` is borrowed; whoever has it lent reads it too.
        Some(unsafe { std::slice::from_raw_parts(self.shared.start.add(place.start), place.len()) })
    }

    /// A slot as it travels, until what it gives is dropped. None: there is no such slot.
    pub(super) fn lend(&mut self, slot: usize) -> Option<Payload> {
        self.shared.lent.get(slot)?;
        self.shared.lend_again(slot);
        let bytes = self.shared.cut.place(slot).len() * size_of::<f32>();
        Some(Payload::Lent(Loan::new(self.shared.clone(), slot, bytes)))
    }

    /// Whether nothing is lent.
    pub(super) fn is_whole(&self) -> bool {
        self.shared.count.load(Ordering::Acquire) == 0
    }

    /// Waits until something has returned, unless nothing is lent.
    pub(super) async fn returned(&self) {
        let returned = self.shared.returned.notified();
        if !self.is_whole() {
            returned.await;
        }
    }

    /// The buffer, when nothing is lent.
    pub(super) async fn into_buffer(self) -> B {
        let mut shared = self.shared;
        loop {
            match Arc::try_unwrap(shared) {
                Ok(shared) => return shared.buffer.into_inner(),
                Err(lent) => {
                    let returned = lent.returned.notified();
                    if lent.count.load(Ordering::Acquire) > 0 {
                        returned.await;
                    } else {
                        // The last one is about to let go of it, on another thread.
                        drop(returned);
                        tokio::task::yield_now().await;
                    }
                    shared = lent;
                }
            }
        }
    }
}

impl<B: Buffer> Lender for Shared<B> {
    fn part(&self, slot: usize) -> &[u8] {
        let place = self.cut.place(slot);
        // SAFETY: the place is within the buffer, and nobody writes it while it is lent; numbers have no padding.
        unsafe {
            std::slice::from_raw_parts(self.start.add(place.start).cast(), place.len() * size_of::<f32>())
        }
    }

    fn lend_again(&self, slot: usize) {
        if let Some(lent) = self.lent.get(slot) {
            lent.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn take_back(&self, slot: usize) {
        if let Some(lent) = self.lent.get(slot) {
            // Release: it has been read.
            lent.fetch_sub(1, Ordering::Release);
        }
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CUT: Cut = Cut { length: 10, chunks: 3, granule: 1, segment_floats: 3 };

    fn lending() -> Lending<Vec<f32>> {
        Lending::new((0..10).map(|number| number as f32).collect(), CUT)
    }

    #[tokio::test]
    async fn what_is_lent_is_not_written_until_it_is_returned() {
        let mut lending = lending();
        // Chunks of 4, 3 and 3 numbers, in 2 slots each.
        let loan = lending.lend(CUT.slot(0, 1)).unwrap();
        assert_eq!(*loan, 3.0f32.to_le_bytes());
        drop(lending.lend(CUT.slot(0, 1)));
        assert!(lending.write(CUT.slot(0, 1)).is_none());
        assert_eq!(lending.read(CUT.slot(0, 1)), Some(&[3.0][..]));
        lending.write(CUT.slot(1, 0)).unwrap().fill(9.0);
        let other = lending.lend(CUT.slot(1, 0)).unwrap();
        let again = other.clone();
        drop((loan, other));
        assert!(lending.write(CUT.slot(1, 0)).is_none(), "another loan of it is still there");
        lending.write(CUT.slot(0, 1)).unwrap().fill(8.0);
        assert!(!lending.is_whole());
        let waiting = tokio::spawn(async move {
            while !lending.is_whole() {
                lending.returned().await;
            }
            lending.into_buffer().await
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(again);
        let buffer = waiting.await.unwrap();
        assert_eq!(buffer, [0.0, 1.0, 2.0, 8.0, 9.0, 9.0, 9.0, 7.0, 8.0, 9.0]);
    }

    #[test]
    fn a_loan_outlives_whoever_lent_it() {
        let mut lending = lending();
        let loan = lending.lend(CUT.slot(2, 0)).unwrap();
        drop(lending);
        assert_eq!(loan[..4], 7.0f32.to_le_bytes());
        assert_eq!(loan.len(), 12);
    }

    /// Numbers that lie in the buffer itself, and move with it.
    struct Within([f32; 10]);

    impl std::ops::Deref for Within {
        type Target = [f32];

        fn deref(&self) -> &[f32] {
            &self.0
        }
    }

    impl DerefMut for Within {
        fn deref_mut(&mut self) -> &mut [f32] {
            &mut self.0
        }
    }

    #[tokio::test]
    async fn any_memory_is_lent_and_comes_back() {
        let mut lending = Lending::new(Within([1.0; 10]), CUT);
        let loan = lending.lend(CUT.slot(0, 0)).unwrap();
        let mut lending = Box::new(lending);
        lending.write(CUT.slot(2, 0)).unwrap().fill(2.0);
        assert_eq!(loan[8..], 1.0f32.to_le_bytes());
        drop(loan);
        assert_eq!(lending.into_buffer().await.0, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
        let boxed: Box<[f32]> = vec![3.0; 4].into();
        let place = boxed.as_ptr();
        let back = Lending::new(boxed, CUT).into_buffer().await;
        assert_eq!((back.as_ptr(), &*back), (place, &[3.0; 4][..]));
    }

    #[tokio::test]
    async fn there_is_no_slot_beyond_the_last() {
        let mut lending = lending();
        assert!(lending.write(6).is_none() && lending.read(6).is_none() && lending.lend(6).is_none());
        let mut none = Lending::new(Vec::new(), Cut { length: 0, ..CUT });
        assert!(none.lend(0).is_none());
        assert_eq!(none.into_buffer().await, Vec::<f32>::new());
    }

    proptest! {
        #[test]
        fn slots_cover_the_buffer_once(
            length in 0..500usize, chunks in 1..9usize, granule in 1..40usize, segment_floats in 1..70usize,
        ) {
            let cut = Cut { length, chunks, granule, segment_floats };
            let mut next = 0;
            for place in (0..cut.slots()).map(|slot| cut.place(slot)).filter(|place| !place.is_empty()) {
                prop_assert_eq!(place.start, next);
                next = place.end;
            }
            prop_assert_eq!(next, length);
        }
    }
}
