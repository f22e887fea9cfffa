//! Runs one reader on changed inputs until the time is over.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    memory,
    mutate::{Random, mutate},
};

/// Without `RINGTUNE_FUZZ_SECONDS`, which `make nightly` sets.
const SHORT: u64 = 1;
/// Inputs that are tried however long they take: on a busy disk few are within the time. Ten times as many until one of
/// them is accepted: of some paths only one in fifty is.
const LEAST_RUNS: u64 = 300;
/// Maximal time of an input, on a busy machine too.
const MOST_TIME: Duration = Duration::from_secs(20);
/// Inputs that were accepted and are changed further, besides the valid ones.
const MOST_KEPT: usize = 256;

/// Reads an input and says whether it was accepted.
type Read<'a> = Box<dyn FnMut(&[u8]) -> bool + 'a>;

/// A reader and its inputs.
pub struct Path<'a> {
    /// Name of its input's file.
    pub name: &'static str,
    /// Each is accepted as it is.
    pub valid: Vec<Vec<u8>>,
    /// Words of such inputs.
    pub words: Vec<String>,
    /// Makes what checks the whole fit again, so that changes reach what lies within. Not always done.
    pub mend: fn(Vec<u8>) -> Vec<u8>,
    /// Resident memory that no input may take more of than this, above what the process has before.
    pub most_bytes: u64,
    /// The reader.
    pub read: Read<'a>,
}

impl std::fmt::Debug for Path<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Path").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The words of a list, with a `|` between them.
pub fn words(list: &str) -> Vec<String> {
    list.split('|').map(str::to_owned).collect()
}

/// Takes inputs as they are.
pub fn as_it_is(bytes: Vec<u8>) -> Vec<u8> {
    bytes
}

/// The time and the memory of the process belong to one path at a time, whatever runs the tests.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Seconds for each path.
pub fn seconds() -> u64 {
    number("RINGTUNE_FUZZ_SECONDS").unwrap_or(SHORT)
}

impl Path<'_> {
    /// Tries inputs in this process. `folder` keeps the one that is being tried: `env!("CARGO_TARGET_TMPDIR")`.
    ///
    /// # Panics
    /// An input makes the reader panic, takes too long or too much memory; a valid one is refused, or none is.
    pub fn fuzz(self, folder: &str) {
        self.fuzz_others(folder, &[std::process::id()]);
    }

    /// As above if other processes read: their memory is bounded.
    ///
    /// # Panics
    /// As [`Path::fuzz`], and when one of the processes has ended.
    #[allow(clippy::print_stderr)]
    pub fn fuzz_others(mut self, folder: &str, processes: &[u32]) {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = number("RINGTUNE_FUZZ_SEED").unwrap_or_else(now);
        let time = Duration::from_secs(seconds());
        let current = PathBuf::from(folder).join(format!("fuzz-{}.input", self.name));
        let said = format!("{}: seed {seed}, {}", self.name, current.display());

        // 1. What is valid is accepted, as it is and mended.
        for (place, input) in self.valid.iter().enumerate() {
            let mended = (self.mend)(input.clone());
            assert!((self.read)(&mended), "{}: valid input {place} is refused", self.name);
        }
        processes.iter().for_each(|process| memory::forget(*process));
        let before: Vec<u64> = processes.iter().map(|process| memory::most_bytes(*process)).collect();
        let (mut runs, mut accepted, mut slowest, mut most) = (0u64, 0u64, Duration::ZERO, 0u64);
        let mut random = Random(seed);
        let mut inputs = self.valid.clone();

        // 2. Everything else must only come to an end.
        let end = Instant::now() + time;
        let most_runs = |accepted| if accepted == 0 { 10 * LEAST_RUNS } else { LEAST_RUNS };
        while Instant::now() < end || runs < most_runs(accepted) {
            let raw = mutate(&mut random, &inputs, &self.words);
            let input = if random.below(8) == 0 { raw.clone() } else { (self.mend)(raw.clone()) };
            fs::write(&current, &input).unwrap();
            let began = Instant::now();
            let read = catch_unwind(AssertUnwindSafe(|| (self.read)(&input)));
            let took = began.elapsed();
            runs += 1;
            slowest = slowest.max(took);
            let more = |(process, before): (&u32, &u64)| memory::most_bytes(*process).saturating_sub(*before);
            let used = processes.iter().zip(&before).map(more).max().unwrap_or_default();
            if used > most {
                most = used;
                assert!(used <= self.most_bytes, "{said} took {} MiB", used >> 20);
            }
            assert!(took <= MOST_TIME, "{said} took {took:?}");
            let Ok(fine) = read else { panic!("{said} made the reader panic after {runs} inputs") };
            if fine {
                accepted += 1;
                let place = self.valid.len() + random.below(MOST_KEPT);
                if inputs.len() < self.valid.len() + MOST_KEPT {
                    inputs.push(raw);
                } else {
                    inputs[place] = raw;
                }
            }
        }

        // 3. Both kinds of input were met, or nothing was tried.
        eprintln!(
            "{}: {runs} inputs, {accepted} accepted, slowest {slowest:?}, at most {} MiB more, seed {seed}",
            self.name,
            most >> 20
        );
        assert!(accepted > 0 && accepted < runs, "{said}: {accepted} of {runs} inputs were accepted");
        let _ = fs::remove_file(current);
    }
}
