//! Peak memory of a process, as counted by Linux.

use std::fs;

/// The most resident bytes since [`forget`].
///
/// # Panics
/// The process has ended.
pub fn most_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("the process has ended");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the process has ended");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kilobytes << 10
}

/// Begins to count anew. Source: Documentation/filesystems/proc.rst, `clear_refs`.
///
/// # Panics
/// The process has ended.
pub fn forget(process: u32) {
    fs::write(format!("/proc/{process}/clear_refs"), "5").unwrap();
}
