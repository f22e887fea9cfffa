//! The process's use of the machine: memory, page faults, involuntary context switches.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Interval of memory samples.
const INTERVAL: Duration = Duration::from_millis(5);

/// Counted by the system for all threads of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Pages that were mapped without reading a file.
    pub(super) page_faults: u64,
    /// Involuntary context switches.
    pub(super) involuntary_switches: u64,
}

impl Counts {
    /// Until now.
    pub(super) fn now() -> Self {
        // SAFETY: all-zero bytes are a value of this plain C structure.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is alive and writable. A failure, which this call does not have, would leave zeros.
        let _ = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let count = |number: libc::c_long| u64::try_from(number).unwrap_or(0);
        Self { page_faults: count(usage.ru_minflt), involuntary_switches: count(usage.ru_nivcsw) }
    }

    /// Since an earlier moment.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            page_faults: self.page_faults.saturating_sub(earlier.page_faults),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
        }
    }
}

/// Private memory of this process, in bytes: its anonymous pages, no mapped files.
fn private_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix("kB"));
    kilobytes.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Looks at private memory every few milliseconds, but while it is paused, and remembers the most.
#[derive(Debug)]
pub(super) struct PeakMemory {
    shared: Arc<Shared>,
    looks: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    peak: AtomicU64,
    /// Number of samples.
    looked: AtomicU64,
    paused: AtomicBool,
    ended: AtomicBool,
}

impl PeakMemory {
    pub(super) fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let looks = std::thread::spawn(move || {
            while !theirs.ended.load(Ordering::Relaxed) {
                let paused = || theirs.paused.load(Ordering::Acquire);
                if !paused() {
                    let bytes = private_bytes();
                    // A pause may have begun while it was read.
                    if !paused() {
                        theirs.peak.fetch_max(bytes, Ordering::Relaxed);
                    }
                }
                theirs.looked.fetch_add(1, Ordering::Release);
                std::thread::park_timeout(INTERVAL);
            }
        });
        Self { shared, looks: Some(looks) }
    }

    /// From here on, what measures the machine has memory of its own.
    pub(super) fn pause(&self) {
        self.shared.peak.fetch_max(private_bytes(), Ordering::Relaxed);
        self.shared.paused.store(true, Ordering::Release);
    }

    /// Resumes sampling.
    pub(super) fn go_on(&self) {
        self.shared.paused.store(false, Ordering::Release);
    }

    /// Forgets what was the most.
    pub(super) fn forget(&self) {
        self.shared.peak.store(private_bytes(), Ordering::Relaxed);
    }

    /// The most until now, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.shared.peak.load(Ordering::Relaxed)
    }
}

impl Drop for PeakMemory {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(looks) = self.looks.take() {
            looks.thread().unpark();
            // If it panicked, there is nothing more to say than what it has seen.
            let _ = looks.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_pages_are_counted() {
        let before = Counts::now();
        let touched = std::hint::black_box(vec![1u8; 64 << 20]);
        let faults = Counts::now().since(before).page_faults;
        // In pages of 4 KB 16384, in huge ones 32.
        assert!(faults >= 32, "{faults} page faults");
        assert_eq!(before.since(Counts::now()), Counts::default());
        drop(touched);
    }

    #[test]
    fn the_most_memory_is_remembered_but_not_what_came_in_a_pause() {
        let memory = PeakMemory::start();
        memory.pause();
        let before = memory.bytes();
        let paused = std::hint::black_box(vec![1u8; 256 << 20]);
        let looked = || memory.shared.looked.load(Ordering::Acquire);
        let first = looked();
        while looked() < first + 2 {
            std::thread::park_timeout(INTERVAL);
        }
        assert_eq!(memory.bytes(), before);
        drop(paused);
        memory.go_on();
        let seen = std::hint::black_box(vec![1u8; 64 << 20]);
        while memory.bytes() < (64 << 20) {
            std::thread::park_timeout(INTERVAL);
        }
        drop(seen);
        assert!(memory.bytes() < before + (256 << 20), "{} bytes", memory.bytes());
    }
}
