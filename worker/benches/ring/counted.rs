//! What adding up costs besides time: memory that the program asks for, and what its threads compute.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// The system's allocator, which counts how often it is asked for memory.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn count() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: every call goes on to the system's allocator as it came, and what that gives goes back.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller has it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller has it.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller has it.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as the caller has it.
        unsafe { System.dealloc(place, layout) }
    }
}

/// What this process has cost so far.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    /// Of all its threads, the system's work for them included.
    pub(crate) processor: Duration,
    pub(crate) allocations: u64,
}

impl Cost {
    pub(crate) fn so_far() -> Self {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let nanoseconds =
            time.tv_sec.max(0).unsigned_abs() * 1_000_000_000 + time.tv_nsec.max(0).unsigned_abs();
        let processor = Duration::from_nanos(nanoseconds);
        Self { processor, allocations: ALLOCATIONS.load(Ordering::Relaxed) }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            processor: self.processor.saturating_sub(before.processor),
            allocations: self.allocations - before.allocations,
        }
    }
}
