//! Who lent this process its machine: a scheduler, a container's engine, or nobody.

use std::{path::Path, time::SystemTime};

use super::gibibytes;
use crate::{
    doctor::checks::{Check, Verdict},
    node::Allocation,
};

/// Less than that and a worker cannot leave in peace before its allocation ends.
const LEAST_SECONDS: u64 = 120;
/// Files that engines put into their containers.
const MARKS: [&str; 2] = [".dockerenv", "run/.containerenv"];

/// An allocation of Slurm, a pod, a container, or a machine. `threads`: of a rank; `allowed`: processors of this process.
pub(super) fn surroundings(
    root: &Path,
    allocation: Option<Allocation>,
    in_pod: bool,
    (threads, allowed): (usize, usize),
    now: SystemTime,
) -> Check {
    const NAME: &str = "runs in";
    let Some(Allocation { job, processors, memory_bytes, ends }) = allocation else {
        let is_container = MARKS.iter().any(|mark| root.join(mark).exists());
        let found = match (in_pod, is_container) {
            (true, _) => "a pod of Kubernetes",
            (false, true) => "a container",
            (false, false) => "no allocation and no container",
        };
        return Check::new(NAME, found);
    };
    let left = ends.map(|ends| ends.duration_since(now).unwrap_or_default().as_secs());
    let found = [
        Some(format!("job {job} of Slurm")),
        processors.map(|count| format!("{count} processors a task")),
        memory_bytes.map(|bytes| format!("{} a task", gibibytes(bytes))),
        left.map(|seconds| format!("{}:{:02} minutes to its limit", seconds / 60, seconds % 60)),
    ];
    let check = Check::new(NAME, found.into_iter().flatten().collect::<Vec<_>>().join(", "));
    match processors {
        Some(given) if threads > given => check.unless(
            false,
            Verdict::Warn,
            &format!(
                "{allowed} processors may be used, and Slurm gave {given}: have it keep tasks to theirs \
                 (TaskPlugin=task/affinity or task/cgroup in slurm.conf), or give --threads {given}"
            ),
        ),
        _ => check.unless(
            left.is_none_or(|seconds| seconds >= LEAST_SECONDS),
            Verdict::Warn,
            "a job that begins now is interrupted soon: ask for more --time",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::{super::testing::root, *};

    #[test]
    fn whoever_lent_the_machine_is_named() {
        let of = |files: &[(&str, &str)], in_pod| {
            surroundings(root(files).path(), None, in_pod, (1, 1), UNIX_EPOCH).found
        };
        assert_eq!(of(&[], false), "no allocation and no container");
        assert_eq!(of(&[("run/.containerenv", "")], false), "a container");
        assert_eq!(of(&[("run/.containerenv", "")], true), "a pod of Kubernetes");
    }

    #[test]
    fn an_allocation_that_ends_soon_or_keeps_nobody_to_its_processors_is_warned_of() {
        let allocation = |seconds| Allocation {
            job: "7".to_owned(),
            processors: Some(4),
            memory_bytes: Some(2 << 30),
            ends: Some(UNIX_EPOCH + Duration::from_secs(seconds)),
        };
        let of = |threads, seconds| {
            surroundings(Path::new("/none"), Some(allocation(seconds)), false, (threads, 8), UNIX_EPOCH)
        };
        let good = of(4, 3661);
        assert_eq!(
            good.found,
            "job 7 of Slurm, 4 processors a task, 2.0 GiB a task, 61:01 minutes to its limit"
        );
        assert_eq!([good.verdict, of(4, 100).verdict], [Verdict::Good, Verdict::Warn]);
        assert!(of(8, 3661).advice.contains("--threads 4"));
    }
}
