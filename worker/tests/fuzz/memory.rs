//! How much memory this process has needed at most, as Linux counts it.

use std::fs;

/// The most resident bytes since [`forget`].
pub(crate) fn most_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kilobytes << 10
}

/// Begins to count anew. Source: Documentation/filesystems/proc.rst, clear_refs.
pub(crate) fn forget() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}
