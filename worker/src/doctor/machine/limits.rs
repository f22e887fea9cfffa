//! What the system allows this process: its control groups, its open files, its disk.

use std::path::Path;

use super::{gibibytes, read};
use crate::{
    doctor::checks::{Check, Verdict},
    node::{control_group_values, parse_list},
    settings::Settings,
};

/// A worker with all its connections and caches stays far below.
const FILES: u64 = 1024;
/// Less than that and work files of one job do not fit.
const LEAST_DISK: u64 = 1 << 30;

/// Limits of the control groups that this process is in.
pub(super) fn control_groups(root: &Path) -> Vec<Check> {
    const NAME: &str = "control groups";
    if read(root, "proc/self/cgroup").is_none_or(|text| !text.lines().any(|line| line.starts_with("0::"))) {
        return vec![Check::unknown(NAME, "no control groups of version 2")];
    }
    let quota = control_group_values(root, "cpu.max")
        .iter()
        .filter_map(|line| {
            let (quota, period) = line.split_once(' ')?;
            Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok().filter(|period| *period > 0.0)?)
        })
        .reduce(f64::min);
    let memory =
        control_group_values(root, "memory.max").iter().filter_map(|text| text.parse::<u64>().ok()).min();
    let set = control_group_values(root, "cpuset.cpus.effective").into_iter().next().unwrap_or_default();
    // A quota of all processors of a set of their own stops nobody: the kubelet's static policy gives both.
    let own = parse_list(&set).len();
    let is_held = quota.is_some_and(|processors| own == 0 || processors < own as f64);
    let found = [
        quota.map(|processors| format!("cpu.max {processors:.1} processors")),
        memory.map(|bytes| format!("memory.max {}", gibibytes(bytes))),
        Some(set).filter(|set| !set.is_empty()).map(|set| format!("processors {set}")),
    ];
    let found = found.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let found = if found.is_empty() { "no limits".to_owned() } else { found };
    vec![Check::new(NAME, found).unless(
        !is_held,
        Verdict::Warn,
        "a quota of time stops all threads of a rank in the middle of a step: give it whole processors instead (CPUAffinity= \
         or AllowedCPUs= of its unit, a cpuset of its container, of a pod the kubelet's static policy and whole, equal \
         requests and limits)",
    )]
}

/// The soft limit of open files.
pub(super) fn open_files(root: &Path) -> Check {
    const NAME: &str = "open files";
    let limit = read(root, "proc/self/limits").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_whitespace().next().map(str::to_owned)
    });
    let Some(limit) = limit else { return Check::unknown(NAME, "/proc/self/limits does not say") };
    let enough = limit.parse::<u64>().map_or(limit == "unlimited", |limit| limit >= FILES);
    Check::new(NAME, format!("at most {limit}")).unless(
        enough,
        Verdict::Warn,
        &format!(
            "LimitNOFILE={FILES} or more in the worker's unit, or `ulimit -n {FILES}` before it is started"
        ),
    )
}

/// Room below the state folder.
pub(super) fn disk(settings: &Settings) -> Check {
    const NAME: &str = "disk";
    let folder = &settings.storage.state_dir;
    let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(there) {
        Ok(found) => room(folder, found.f_bavail.saturating_mul(found.f_frsize), settings),
        Err(error) => Check::unknown(NAME, &format!("{}: {error}", there.display())),
    }
}

fn room(folder: &Path, free: u64, settings: &Settings) -> Check {
    let caches = settings.storage.cache_bytes.saturating_add(settings.storage.latent_cache_bytes);
    let found = format!("{} free for {}", gibibytes(free), folder.display());
    let check = Check::new("disk", found);
    if free < LEAST_DISK {
        return check.unless(
            false,
            Verdict::Bad,
            "make room, or name another storage.state_dir (--state-dir)",
        );
    }
    check.unless(
        free >= caches,
        Verdict::Warn,
        &format!(
            "the caches may grow to {}: lower storage.cache_bytes and storage.latent_cache_bytes, or make room",
            gibibytes(caches)
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::{super::testing::root, *};

    #[test]
    fn a_quota_is_warned_of_and_a_set_of_processors_is_not() {
        let group = |quota: &str| {
            let root = root(&[
                ("proc/self/cgroup", "0::/a\n"),
                ("sys/fs/cgroup/a/cpu.max", quota),
                ("sys/fs/cgroup/a/memory.max", "4294967296\n"),
                ("sys/fs/cgroup/a/cpuset.cpus.effective", "0-3\n"),
            ]);
            control_groups(root.path()).remove(0)
        };
        let (free, held) = (group("max 100000\n"), group("150000 100000\n"));
        assert_eq!(
            (free.verdict, free.found.as_str()),
            (Verdict::Good, "memory.max 4.0 GiB, processors 0-3")
        );
        assert_eq!(held.verdict, Verdict::Warn);
        assert!(held.found.starts_with("cpu.max 1.5 processors"), "{held:?}");
        // A pod with whole processors of its own.
        assert_eq!(group("400000 100000\n").verdict, Verdict::Good);
    }

    #[test]
    fn few_open_files_are_warned_of() {
        let of = |limit: &str| {
            let text = format!("Max processes 1 2 p\nMax open files            {limit}    524288   files\n");
            open_files(root(&[("proc/self/limits", &text)]).path()).verdict
        };
        assert_eq!([of("256"), of("1024"), of("unlimited")], [Verdict::Warn, Verdict::Good, Verdict::Good]);
    }

    #[test]
    fn a_full_disk_is_a_failure_and_a_small_one_a_warning() {
        let settings = Settings::default();
        let of = |gibibytes: u64| room(Path::new("/x"), gibibytes << 30, &settings).verdict;
        assert_eq!([of(0), of(8), of(12)], [Verdict::Bad, Verdict::Warn, Verdict::Good]);
    }
}
