//! The command line of the benchmark.

use std::path::PathBuf;

use clap::Parser;

/// Ranks of every job here.
pub(crate) const RANKS: usize = 4;

/// Loads a coordinator with fake workers and jobs, kills it, starts it again, and checks the bounds that Ringtune keeps
/// for its control plane.
///
/// The workers speak the real protocol and compute nothing; the coordinator is the real one, on a temporary folder.
/// Rings of four ranks step once a second all the time. Behind them jobs are created in three stages, up to a
/// hundredth, a tenth, and all of --jobs, of 200 owners and four priorities, the highest of which may take ranks from
/// others, while pages of the list are read; after each stage the coordinator is killed with SIGKILL and started
/// again. In the end the rings are cancelled and the jobs pass through.
///
/// How fast the disk syncs is measured all the while, as CreateJob cannot be faster. Exit code 0: all bounds held;
/// 1: one did not, or something broke; 130: interrupted.
#[derive(Parser, Debug, Clone)]
#[command(
    name = "bench-control",
    after_help = "Examples:\n  \
        As the bounds are meant (about two minutes):\n    \
        make bench-control\n  \
        A quick look:\n    \
        make bench-control ARGUMENTS='--workers 100 --rings 20 --jobs 300 --seconds 5'\n  \
        For programs:\n    \
        make bench-control ARGUMENTS='--json' >figures.json\n\n\
        A machine that does other things meanwhile shows in every figure; the one for fdatasync says whether its disk \
        was slow."
)]
pub(crate) struct Arguments {
    /// Fake workers, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = count)]
    pub(crate) workers: usize,
    /// Rings of four workers that step once a second
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = count)]
    pub(crate) rings: usize,
    /// Jobs of four ranks and three steps that are created while the rings step
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = count)]
    pub(crate) jobs: usize,
    /// CreateJob calls under way at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count)]
    pub(crate) in_flight: usize,
    /// For so long jobs pass through at the end, or until none is left
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// The creation of all jobs is broken off after so long, as a failure
    #[arg(long, value_name = "SECONDS", default_value_t = 240, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) limit: u64,
    /// Where the coordinator's temporary folder is made, on the disk to measure [default: $TMPDIR or /tmp]
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

impl Arguments {
    /// Checks beyond the types.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.rings * RANKS > self.workers {
            return Some(format!(
                "--rings: got {}; allowed: at most a quarter of --workers, which is {}",
                self.rings,
                self.workers / RANKS
            ));
        }
        let missing = self.folder.as_ref().filter(|folder| !folder.is_dir())?;
        Some(format!("--folder: got {}; allowed: a folder that exists", missing.display()))
    }
}

fn count(text: &str) -> Result<usize, String> {
    let number = text.replace([',', '_'], "").parse().map_err(|_| "allowed: a whole number".to_owned())?;
    if (1..=100_000).contains(&number) { Ok(number) } else { Err("allowed: 1 to 100000".to_owned()) }
}
