//! The processor: its model, its flags, and how much of it this process may use.

use std::{collections::BTreeSet, fs, path::Path};

use ringtune_shared::names;

use crate::engine::InstructionSet;

use super::{control_group_values, parse_list};

/// The flags that decide which kernels run and how fast, in the order they are reported, with the first set that uses them.
const FLAGS_THAT_MATTER: [(&str, InstructionSet); 9] = [
    ("avx", InstructionSet::Avx2),
    ("avx2", InstructionSet::Avx2),
    ("fma", InstructionSet::Avx2),
    ("avx512f", InstructionSet::Avx512),
    ("avx512_vnni", InstructionSet::Avx512),
    ("avx512_bf16", InstructionSet::Avx512Bf16),
    ("amx_tile", InstructionSet::Amx),
    ("amx_bf16", InstructionSet::Amx),
    ("amx_int8", InstructionSet::Amx),
];

/// The processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The model's name as /proc/cpuinfo has it.
    pub model: String,
    /// Those of [`FLAGS_THAT_MATTER`] that it has.
    pub flags: Vec<String>,
    /// Logical processors allowed by affinity and quota; at least 1.
    pub allowed: usize,
    /// Physical cores among them; at least 1.
    pub physical_cores: usize,
}

impl Cpu {
    /// Of a process that may use so many physical cores.
    pub(super) fn read(root: &Path, cores: usize, quota: Option<usize>) -> Self {
        let info = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
        let field = |name: &str| {
            info.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim() == name)
                .map(|(_, value)| value.trim().to_owned())
                .unwrap_or_default()
        };
        let all_flags = field("flags");
        let has: BTreeSet<&str> = all_flags.split_whitespace().collect();
        let matter = FLAGS_THAT_MATTER.iter().map(|(flag, _)| *flag);
        let flags = matter.filter(|flag| has.contains(flag)).map(str::to_owned).collect();
        let model = Some(names::visible(&field("model name")).into_owned())
            .filter(|m| !m.is_empty())
            .unwrap_or_else(|| "unknown".to_owned());

        let quota = quota.unwrap_or(usize::MAX);
        Self {
            model,
            flags,
            allowed: allowed_processors(root).len().min(quota).max(1),
            physical_cores: cores.min(quota).max(1),
        }
    }

    /// The processor has this one of the flags that matter.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|have| have == flag)
    }

    /// It multiplies bf16 in hardware.
    pub fn has_bf16(&self) -> bool {
        self.has("avx512_bf16") || self.has("amx_bf16")
    }

    /// The best set of instructions that it has.
    pub fn instruction_set(&self) -> InstructionSet {
        let decide = ["amx_bf16", "avx512_bf16", "avx512f", "avx2"];
        let of_flags = FLAGS_THAT_MATTER.iter().filter(|(flag, _)| decide.contains(flag) && self.has(flag));
        of_flags.map(|(_, set)| *set).max().unwrap_or(InstructionSet::Portable)
    }

    /// Without what `most` has not.
    pub(super) fn limited(mut self, most: InstructionSet) -> Self {
        let beyond = |flag: &str| FLAGS_THAT_MATTER.iter().any(|(name, set)| *name == flag && *set > most);
        self.flags.retain(|flag| !beyond(flag));
        self
    }
}

/// The processors that this process's affinity and cpuset let it use, by number. An affinity may name some that are
/// offline, or were never there.
pub(crate) fn allowed_processors(root: &Path) -> Vec<usize> {
    let online = fs::read_to_string(root.join("sys/devices/system/cpu/online")).map(|text| parse_list(&text));
    let is_online = |processor: &usize| online.as_ref().map_or(true, |online| online.contains(processor));
    fs::read_to_string(root.join("proc/self/status"))
        .ok()
        .and_then(|status| {
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:").map(parse_list))
        })
        .map(|allowed| allowed.into_iter().filter(is_online).collect::<Vec<_>>())
        .filter(|list| !list.is_empty())
        .unwrap_or_else(|| vec![0])
}

/// Whole processors that the control group's quota pays for, rounded up.
pub(super) fn quota(root: &Path) -> Option<usize> {
    control_group_values(root, "cpu.max")
        .iter()
        .filter_map(|line| {
            let (quota, period) = line.split_once(' ')?;
            let (quota, period) =
                (quota.parse::<u64>().ok()?, period.parse::<u64>().ok().filter(|p| *p > 0)?);
            usize::try_from(quota.div_ceil(period)).ok()
        })
        .min()
}
