//! Memory and its nodes.

use std::{fs, path::Path};

use super::control_group_values;

/// Bytes that this process may use: MemTotal, or a smaller limit of its control group.
pub fn memory_bytes(root: &Path) -> u64 {
    let total = fs::read_to_string(root.join("proc/meminfo"))
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        })
        .map_or(0, |kilobytes| kilobytes.saturating_mul(1024));
    control_group_values(root, "memory.max")
        .iter()
        .filter_map(|limit| limit.parse::<u64>().ok())
        .fold(total, |least, limit| if least == 0 { limit } else { least.min(limit) })
}

/// Bytes of this process in memory that no file backs; 0 where the system does not say.
pub fn private_bytes(root: &Path) -> u64 {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .map_or(0, |kilobytes| kilobytes.saturating_mul(1024))
}

/// Memory nodes, from /sys/devices/system/node; at least 1.
pub fn numa_nodes(root: &Path) -> usize {
    let Ok(entries) = fs::read_dir(root.join("sys/devices/system/node")) else { return 1 };
    entries
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .to_str()
                .and_then(|name| name.strip_prefix("node"))
                .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        })
        .count()
        .max(1)
}
