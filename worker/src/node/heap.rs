//! Configures the C library's reuse of freed memory.

/// Bytes of a block from which on the C library asks the system for each block: twice what a message of a ring has at most.
const OWN_BLOCK_BYTES: libc::c_int = 4 << 20;
/// Free bytes at the end of its memory that it keeps.
const KEPT_BYTES: libc::c_int = 64 << 20;

/// Has the C library keep what a ring's messages took, for the next ones. By itself it gives blocks of 128 KiB and more back
/// to the system, until it has seen some; then the system clears the pages of each message anew. In a new process that took
/// between a fifth and a half of an exchange's processor time. Once, early.
pub fn keep_blocks() {
    for (option, bytes) in [(libc::M_MMAP_THRESHOLD, OWN_BLOCK_BYTES), (libc::M_TRIM_THRESHOLD, KEPT_BYTES)] {
        // SAFETY: it takes two numbers, locks what it changes, and an option that it does not know changes nothing.
        unsafe { libc::mallopt(option, bytes) };
    }
}
