//! Describes this machine, from texts in /proc and /sys that tests can write.

mod cores;
mod cpu;
mod heap;
mod interface;
mod memory;
mod slurm;

use std::path::Path;

pub(crate) use cores::{Claim, CoreClaim, Wish};
pub use cores::{Cores, Share, WrongShare};
pub use cpu::Cpu;
pub(crate) use cpu::allowed_processors;
pub use heap::keep_blocks;
pub(crate) use interface::Interface;
pub use memory::{memory_bytes, numa_nodes, private_bytes};
use ringtune_shared::names;
pub use slurm::Allocation;

use crate::engine::InstructionSet;

/// The machine as far as a job cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// For people.
    pub host_name: String,
    /// The processor and what of it this process may use.
    pub cpu: Cpu,
    /// The cores that this process may use.
    pub cores: Cores,
    /// Processors of its control group's quota.
    pub quota: Option<usize>,
    /// Bytes of memory this process may use: the machine's, or its control group's limit.
    pub memory_bytes: u64,
    /// Memory nodes.
    pub numa_nodes: usize,
}

impl Node {
    /// Reads the machine this runs on, as far as this process uses its instructions. What cannot be read is left at its most
    /// modest value.
    pub fn detect() -> Self {
        let node = Self::read(Path::new("/"));
        Self { cpu: node.cpu.limited(InstructionSet::limit()), memory_bytes: memory_of_process(), ..node }
    }

    /// Reads `/proc` and `/sys` below `root`.
    pub fn read(root: &Path) -> Self {
        let host_name = std::fs::read_to_string(root.join("proc/sys/kernel/hostname"))
            .map(|name| names::visible(name.trim()).into_owned())
            .ok()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "localhost".to_owned());
        let (cores, quota) = (Cores::read(root), cpu::quota(root));
        Self {
            host_name,
            cpu: Cpu::read(root, cores.count(), quota),
            cores,
            quota,
            memory_bytes: memory_bytes(root),
            numa_nodes: numa_nodes(root),
        }
    }
}

/// Bytes of memory that this process may use: the machine's, its control group's, or what Slurm gave to its task, whether or not
/// anything keeps it to that. 0: nothing says.
pub fn memory_of_process() -> u64 {
    let (of_machine, allocation) = (memory_bytes(Path::new("/")), Allocation::of_process());
    let given = allocation.and_then(|allocation| allocation.memory_bytes);
    given.map_or(of_machine, |given| if of_machine == 0 { given } else { given.min(of_machine) })
}

/// Parses the kernel's lists such as "0-3,8,10-11".
pub(crate) fn parse_list(text: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>())
            && last.saturating_sub(first) < 1 << 16
        {
            all.extend(first..=last);
        }
    }
    all
}

/// The folder of this process's control group (version 2), below /sys/fs/cgroup.
fn control_group(root: &Path) -> Option<std::path::PathBuf> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/').to_owned();
    Some(root.join("sys/fs/cgroup").join(path))
}

/// Control groups limit their children: the values of `file` in this process's group and all above it.
pub(crate) fn control_group_values(root: &Path, file: &str) -> Vec<String> {
    let top = root.join("sys/fs/cgroup");
    let Some(group) = control_group(root) else { return Vec::new() };
    group
        .ancestors()
        .take_while(|folder| folder.starts_with(&top))
        .filter_map(|folder| std::fs::read_to_string(folder.join(file)).ok())
        .map(|text| text.trim().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn lists_of_the_kernel() {
        assert_eq!(parse_list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(parse_list("").is_empty());
        assert!(parse_list("x-y").is_empty());
    }

    #[test]
    fn a_node_with_hyperthreads_affinity_and_limits() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "proc/sys/kernel/hostname", "node-7\n");
        write(
            root,
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Xeon 8480+\nflags\t\t: fpu avx2 avx512f amx_bf16 amx_tile\n\nprocessor\t: 1\n",
        );
        write(root, "proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-2\n");
        for cpu in 0..4 {
            let siblings = if cpu % 2 == 0 { "0,2" } else { "1,3" };
            write(root, &format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"), siblings);
        }
        write(root, "proc/meminfo", "MemTotal:       2048 kB\nMemFree: 1 kB\n");
        write(root, "proc/self/cgroup", "0::/a/b\n");
        write(root, "sys/fs/cgroup/a/memory.max", "1048576\n");
        write(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
        write(root, "sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
        fs::create_dir_all(root.join("sys/devices/system/node/node0")).unwrap();
        fs::create_dir_all(root.join("sys/devices/system/node/node1")).unwrap();
        let node = Node::read(root);
        assert_eq!(node.host_name, "node-7");
        assert_eq!(node.cpu.model, "Xeon 8480+");
        assert_eq!(node.cpu.flags, ["avx2", "avx512f", "amx_tile", "amx_bf16"]);
        assert!(node.cpu.has_bf16());
        assert_eq!(node.cpu.instruction_set(), InstructionSet::Amx);
        let lowered = node.cpu.clone().limited(InstructionSet::Avx512);
        assert_eq!((lowered.flags.join(" ").as_str(), lowered.has_bf16()), ("avx2 avx512f", false));
        for most in InstructionSet::ALL {
            let limited = node.cpu.clone().limited(most).instruction_set();
            // This machine has no flag avx512_bf16.
            let best = if most == InstructionSet::Avx512Bf16 { InstructionSet::Avx512 } else { most };
            assert_eq!(limited, best.min(InstructionSet::Amx));
        }
        // CPUs 0, 1, 2 are allowed; 0 and 2 share a core; the quota of 1.5 processors rounds up.
        assert_eq!((node.cpu.allowed, node.cpu.physical_cores), (2, 2));
        assert_eq!((node.memory_bytes, node.numa_nodes), (1 << 20, 2));
    }

    #[test]
    fn a_machine_that_says_nothing_still_counts_as_one() {
        let root = tempfile::tempdir().unwrap();
        let node = Node::read(root.path());
        assert_eq!((node.cpu.allowed, node.cpu.physical_cores, node.numa_nodes), (1, 1, 1));
        assert!(!node.cpu.has_bf16());
    }
}
