//! Memory beyond its size: pages, reserves, swap.

use std::path::Path;

use super::{gibibytes, memory_line, read};
use crate::doctor::checks::{Check, Verdict};

/// Whether large blocks of tensors get large pages.
pub(super) fn pages(root: &Path) -> Check {
    const NAME: &str = "huge pages";
    let Some(text) = read(root, "sys/kernel/mm/transparent_hugepage/enabled") else {
        return Check::unknown(NAME, "the kernel has no transparent huge pages, or hides them");
    };
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("", |(word, _)| word);
    Check::new(NAME, format!("transparent: {chosen}")).unless(
        chosen != "never",
        Verdict::Warn,
        "steps are slower on small pages: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` as root, and \
         transparent_hugepage=madvise on the kernel's command line, which lasts",
    )
}

/// Memory that is set aside for pages that nothing here asks for.
pub(super) fn reserved_pages(root: &Path) -> Check {
    const NAME: &str = "reserved pages";
    let lines = ["HugePages_Total", "HugePages_Free", "Hugepagesize"].map(|name| memory_line(root, name));
    let [Some(total), Some(free), Some(size)] = lines else {
        return Check::unknown(NAME, "/proc/meminfo does not say");
    };
    let idle = free.saturating_mul(size);
    let found = format!("{total}, of them {free} free ({})", gibibytes(idle));
    Check::new(NAME, found).unless(
        idle < 1 << 30,
        Verdict::Warn,
        "workers use transparent huge pages alone: set vm.nr_hugepages to what other programs need, and that memory is back",
    )
}

/// What is in memory now, and what no longer fits.
pub(super) fn swap(root: &Path) -> Check {
    const NAME: &str = "memory in use";
    let lines = ["MemTotal", "MemAvailable", "SwapTotal", "SwapFree"].map(|name| memory_line(root, name));
    let [Some(total), Some(available), Some(swap), Some(unused)] = lines else {
        return Check::unknown(NAME, "/proc/meminfo does not say");
    };
    let used = swap.saturating_sub(unused);
    let found = format!(
        "{} of {} available, {} of {} swap used",
        gibibytes(available),
        gibibytes(total),
        gibibytes(used),
        gibibytes(swap)
    );
    Check::new(NAME, found).unless(
        used < 1 << 30,
        Verdict::Warn,
        "a rank that is swapped out holds up its whole ring: see what else runs here (`ps aux --sort -rss | head`), and \
         end it or move it",
    )
}

#[cfg(test)]
mod tests {
    use super::{super::testing::root, *};

    #[test]
    fn small_pages_are_warned_of() {
        let of = |text: &str| pages(root(&[("sys/kernel/mm/transparent_hugepage/enabled", text)]).path());
        assert_eq!(of("always [madvise] never\n").found, "transparent: madvise");
        assert_eq!(of("[always] madvise never\n").verdict, Verdict::Good);
        assert_eq!(of("always madvise [never]\n").verdict, Verdict::Warn);
    }

    #[test]
    fn memory_that_is_set_aside_or_swapped_is_warned_of() {
        let meminfo = |huge: u64, swap_free: u64| {
            let text = format!(
                "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 4194304 kB\nSwapFree: {swap_free} kB\n\
                 HugePages_Total: {huge}\nHugePages_Free: {huge}\nHugepagesize: 2048 kB\n"
            );
            root(&[("proc/meminfo", &text)])
        };
        let (good, bad) = (meminfo(0, 4_194_304), meminfo(1024, 1_048_576));
        assert_eq!(reserved_pages(good.path()).verdict, Verdict::Good);
        let check = reserved_pages(bad.path());
        assert_eq!(
            (check.verdict, check.found.as_str()),
            (Verdict::Warn, "1024, of them 1024 free (2.0 GiB)")
        );
        assert_eq!(swap(good.path()).found, "8.0 GiB of 16.0 GiB available, 0.0 GiB of 4.0 GiB swap used");
        assert_eq!((swap(good.path()).verdict, swap(bad.path()).verdict), (Verdict::Good, Verdict::Warn));
    }
}
