//! The checks of this machine: what its system says below `/proc` and `/sys`, which tests write themselves.

mod clock;
mod limits;
mod memory;
mod processor;
mod surroundings;

use std::{env, fs, path::Path, time::SystemTime};

use super::checks::Check;
use crate::{
    capabilities::default_threads,
    node::{Allocation, Node, Wish, allowed_processors},
    settings::Settings,
};

pub(super) use processor::difference;

/// All of them.
pub(super) fn of_machine(root: &Path, settings: &Settings) -> Vec<Check> {
    let node = Node::read(root);
    let allowed = allowed_processors(root);
    let portion = node.cores.portion(settings.compute.share());
    let computing = if portion.shared { allowed.clone() } else { portion.cores.processors() };
    let threads = default_threads(&node, &settings.compute);
    let in_pod = env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let counts = (threads, allowed.len());
    let mut checks = vec![
        surroundings::surroundings(root, Allocation::of_process(), in_pod, counts, SystemTime::now()),
        processor::instruction_sets(&node.cpu, processor::offered(), settings.compute.instruction_set),
        processor::governor(root, &allowed),
        processor::turbo(root),
        processor::threads(root, &node, threads),
        processor::place(&Wish { portion: &portion, threads, quota: node.quota }.look()),
        processor::memory_nodes(root, &computing),
        memory::pages(root),
        memory::reserved_pages(root),
        memory::swap(root),
    ];
    checks.extend(limits::control_groups(root));
    checks.push(limits::open_files(root));
    checks.push(limits::disk(settings));
    checks.push(clock::synchronised());
    checks
}

/// A file of the system in one line; none: it is not there, or says nothing.
fn read(root: &Path, path: &str) -> Option<String> {
    let text = fs::read_to_string(root.join(path)).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// A line of /proc/meminfo, in bytes or, where it has no unit, as it is.
fn memory_line(root: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim();
    match value.strip_suffix("kB") {
        Some(kilobytes) => kilobytes.trim().parse::<u64>().ok()?.checked_mul(1024),
        None => value.parse().ok(),
    }
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1u32 << 30))
}

#[cfg(test)]
mod testing {
    use std::{fs, path::Path};

    /// A root with these files.
    pub(super) fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path: &Path = &root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_system_that_says_nothing_has_no_faults() {
        let root = tempfile::tempdir().unwrap();
        let mut settings = Settings::default();
        settings.storage.state_dir = root.path().to_owned();
        settings.storage.cache_bytes = 0;
        settings.storage.latent_cache_bytes = 0;
        let checks = of_machine(root.path(), &settings);
        for check in checks.iter().filter(|check| !["clock", "instruction sets"].contains(&check.name)) {
            assert_eq!(check.verdict, Verdict::Good, "{check:?}");
        }
        assert!(checks.iter().filter(|check| check.found.starts_with("not known here")).count() >= 7);
    }
}
