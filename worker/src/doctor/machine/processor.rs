//! What slows a processor down: instructions that are hidden, clocks that are held down, threads that share a core.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::read;
use crate::{
    doctor::checks::{Check, Verdict},
    engine::InstructionSet,
    node::{Cpu, Node, Place, parse_list},
};

const CPUS: &str = "sys/devices/system/cpu";

/// The flags that the processor itself offers, of those that are a matter of the kernel too. None: it is none of x86.
#[cfg(target_arch = "x86_64")]
pub(super) fn offered() -> Option<Vec<&'static str>> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax < 7 {
        return Some(Vec::new());
    }
    let (features, more) = (__cpuid_count(7, 0), __cpuid_count(7, 1));
    let bits =
        [("avx512_bf16", more.eax >> 5), ("amx_tile", features.edx >> 24), ("amx_bf16", features.edx >> 22)];
    Some(bits.into_iter().filter(|(_, bit)| bit & 1 == 1).map(|(flag, _)| flag).collect())
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn offered() -> Option<Vec<&'static str>> {
    None
}

/// What the processor offers against what the kernel lets through, and what of that is used.
pub(super) fn instruction_sets(
    cpu: &Cpu,
    offered: Option<Vec<&'static str>>,
    limit: InstructionSet,
) -> Check {
    const NAME: &str = "instruction sets";
    let best = cpu.instruction_set();
    if limit < best {
        return Check::new(NAME, format!("{limit}, to which compute.instruction_set lowers {best}"));
    }
    let Some(offered) = offered else { return Check::unknown(NAME, "this processor is none of x86") };
    let hidden: Vec<&str> = offered.into_iter().filter(|flag| !cpu.has(flag)).collect();
    if hidden.is_empty() {
        return Check::new(NAME, format!("{best}; the kernel lets through all that the processor offers"));
    }
    let found = format!("the processor has {}, and the kernel hides it", hidden.join(", "));
    Check::new(NAME, found).unless(
        false,
        Verdict::Warn,
        "start a kernel of 5.16 or later, without clearcpuid= and noxsave on its command line (/proc/cmdline)",
    )
}

/// What differs between the flags that matter here and those of another worker. None: nothing.
pub(in crate::doctor) fn difference(here: &[String], there: &[String]) -> Option<String> {
    let beyond = |a: &[String], b: &[String]| {
        a.iter().filter(|flag| !b.contains(flag)).cloned().collect::<Vec<_>>().join(", ")
    };
    let (only_here, only_there) = (beyond(here, there), beyond(there, here));
    match (only_here.is_empty(), only_there.is_empty()) {
        (true, true) => None,
        (false, true) => Some(format!("{only_here} only here")),
        (true, false) => Some(format!("{only_there} only there")),
        (false, false) => Some(format!("{only_here} only here, {only_there} only there")),
    }
}

/// Who decides how fast the processors run.
pub(super) fn governor(root: &Path, allowed: &[usize]) -> Check {
    const NAME: &str = "frequency";
    let mut governors: BTreeMap<String, usize> = BTreeMap::new();
    for cpu in allowed {
        if let Some(governor) = read(root, &format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor")) {
            *governors.entry(governor).or_default() += 1;
        }
    }
    if governors.is_empty() {
        return Check::unknown(NAME, "a virtual machine leaves it to its host");
    }
    let found = governors.iter().map(|(name, count)| format!("{name} ({count} processors)"));
    let found = format!("governor {}", found.collect::<Vec<_>>().join(", "));
    let slow =
        governors.keys().any(|name| ["powersave", "conservative", "userspace"].contains(&name.as_str()));
    Check::new(NAME, found).unless(
        !slow,
        Verdict::Warn,
        "the processors may run below their speed: `cpupower frequency-set -g performance` as root, or tuned's profile \
         throughput-performance, which lasts",
    )
}

/// Whether the processors may run faster than their nominal clock.
pub(super) fn turbo(root: &Path) -> Check {
    const NAME: &str = "turbo";
    let off = match read(root, &format!("{CPUS}/intel_pstate/no_turbo")) {
        Some(text) => text == "1",
        None => match read(root, &format!("{CPUS}/cpufreq/boost")) {
            Some(text) => text == "0",
            None => return Check::unknown(NAME, "a virtual machine leaves it to its host"),
        },
    };
    Check::new(NAME, if off { "off" } else { "on" }).unless(
        !off,
        Verdict::Warn,
        "switch it on in the firmware, or `echo 0 > /sys/devices/system/cpu/intel_pstate/no_turbo` (elsewhere `echo 1 > \
         /sys/devices/system/cpu/cpufreq/boost`) as root",
    )
}

/// Threads of a rank that would share a core, or wait for each other.
pub(super) fn threads(root: &Path, node: &Node, threads: usize) -> Check {
    let cpu = &node.cpu;
    let siblings = match read(root, &format!("{CPUS}/smt/active")).as_deref() {
        Some("1") => "on",
        Some(_) => "off",
        None => "not known",
    };
    let found = format!(
        "{threads} a rank on {} cores ({} processors, SMT {siblings})",
        cpu.physical_cores, cpu.allowed
    );
    let fit = threads <= cpu.physical_cores;
    let advice = match threads <= cpu.allowed {
        true => format!(
            "threads that share a core are slower together than alone: set compute.threads to 0, or to at most {}",
            cpu.physical_cores
        ),
        false => {
            format!("threads wait for each other: set compute.threads to at most {}", cpu.physical_cores)
        }
    };
    Check::new("threads and cores", found).unless(fit, Verdict::Warn, &advice)
}

/// Where a worker that is started now would compute. That another worker has the cores is no fault: it may be the one
/// that is asked about.
pub(super) fn place(place: &Place) -> Check {
    Check::new("computes on", place.to_string()).unless(
        !place.has_fewer_cores_than_workers(),
        Verdict::Warn,
        "its workers wait for each other's threads: start as many as this machine has cores, or fewer (compute.share)",
    )
}

/// Whether this process is spread over memory nodes.
pub(super) fn memory_nodes(root: &Path, allowed: &[usize]) -> Check {
    const NAME: &str = "NUMA";
    let mut nodes: Vec<(usize, usize)> = Vec::new();
    for entry in fs::read_dir(root.join("sys/devices/system/node")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse::<usize>().ok());
        let (Some(number), Ok(list)) = (number, fs::read_to_string(entry.path().join("cpulist"))) else {
            continue;
        };
        let of_node: BTreeSet<usize> = parse_list(&list).into_iter().collect();
        let ours = allowed.iter().filter(|cpu| of_node.contains(cpu)).count();
        if ours > 0 {
            nodes.push((number, ours));
        }
    }
    nodes.sort_unstable();
    if nodes.is_empty() {
        return Check::unknown(NAME, "the system names no memory nodes");
    }
    let each = nodes.iter().map(|(node, ours)| format!("node {node}: {ours} processors"));
    Check::new(NAME, each.collect::<Vec<_>>().join(", ")).unless(
        nodes.len() == 1,
        Verdict::Warn,
        "a worker here spans several sockets: start one for each (ringtune-worker@0, ringtune-worker@1, …; without \
         systemd `numactl --cpunodebind N --membind N`), with its own --state-dir and ports",
    )
}

#[cfg(test)]
mod tests {
    use super::{super::testing::root, *};
    use crate::node::Cores;

    const AUTO: InstructionSet = InstructionSet::Auto;

    fn cpu(flags: &[&str]) -> Cpu {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Cpu { model: "m".to_owned(), flags, allowed: 4, physical_cores: 2 }
    }

    #[test]
    fn what_the_kernel_hides_is_named() {
        let all = Some(vec!["avx512_bf16", "amx_tile", "amx_bf16"]);
        assert_eq!(
            instruction_sets(&cpu(&["avx512_bf16", "amx_tile", "amx_bf16"]), all.clone(), AUTO).found,
            "amx; the kernel lets through all that the processor offers"
        );
        let check = instruction_sets(&cpu(&["avx512_bf16"]), all.clone(), AUTO);
        assert_eq!(check.verdict, Verdict::Warn);
        assert!(check.found.contains("amx_tile, amx_bf16"), "{check:?}");
        assert!(instruction_sets(&cpu(&[]), None, AUTO).found.starts_with("not known"));
        let lowered = instruction_sets(&cpu(&["avx512_bf16"]), all, InstructionSet::Avx2);
        assert_eq!(lowered.found, "avx2, to which compute.instruction_set lowers avx512_bf16");
    }

    #[test]
    fn two_workers_differ_by_what_only_one_of_them_has() {
        let list = |flags: &[&str]| flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>();
        let differ = |a: &[&str], b: &[&str]| difference(&list(a), &list(b));
        assert_eq!(differ(&["a", "b"], &["b", "a"]), None);
        assert_eq!(differ(&["a"], &["a", "b"]).as_deref(), Some("b only there"));
        assert_eq!(differ(&["a"], &["b"]).as_deref(), Some("a only here, b only there"));
    }

    #[test]
    fn a_governor_that_saves_power_is_warned_of() {
        let of = |second: &str| {
            let root = root(&[
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
                ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", second),
            ]);
            governor(root.path(), &[0, 1])
        };
        assert_eq!((of("performance").verdict, of("powersave\n").verdict), (Verdict::Good, Verdict::Warn));
        assert_eq!(of("powersave").found, "governor performance (1 processors), powersave (1 processors)");
        assert!(of("powersave").advice.contains("cpupower"));
    }

    #[test]
    fn turbo_is_off_where_either_driver_says_so() {
        let of = |path: &str, text: &str| turbo(root(&[(path, text)]).path()).verdict;
        let intel = "sys/devices/system/cpu/intel_pstate/no_turbo";
        let others = "sys/devices/system/cpu/cpufreq/boost";
        assert_eq!((of(intel, "0\n"), of(intel, "1\n")), (Verdict::Good, Verdict::Warn));
        assert_eq!((of(others, "1\n"), of(others, "0\n")), (Verdict::Good, Verdict::Warn));
    }

    #[test]
    fn threads_have_a_core_each() {
        let root = root(&[("sys/devices/system/cpu/smt/active", "1\n")]);
        let node = Node {
            host_name: "n".to_owned(),
            cpu: cpu(&[]),
            cores: Cores::default(),
            quota: None,
            memory_bytes: 0,
            numa_nodes: 1,
        };
        let of = |count| threads(root.path(), &node, count);
        assert_eq!(of(2).found, "2 a rank on 2 cores (4 processors, SMT on)");
        assert_eq!(
            (of(2).verdict, of(3).verdict, of(5).verdict),
            (Verdict::Good, Verdict::Warn, Verdict::Warn)
        );
        assert!(of(3).advice.contains("share a core") && of(5).advice.contains("wait for each other"));
    }

    #[test]
    fn a_worker_belongs_on_one_socket() {
        let root = root(&[
            ("sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("sys/devices/system/node/node1/cpulist", "2-3\n"),
        ]);
        let of = |allowed: &[usize]| memory_nodes(root.path(), allowed);
        assert_eq!((of(&[0, 1]).verdict, of(&[0, 2]).verdict), (Verdict::Good, Verdict::Warn));
        assert_eq!(of(&[0, 2, 3]).found, "node 0: 1 processors, node 1: 2 processors");
        assert!(of(&[0, 2]).advice.contains("ringtune-worker@"));
    }
}
