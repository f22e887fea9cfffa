//! `make chaos`: rounds of the fault matrix, longer measurements, and what they gave.

mod matrix;
mod report;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{ArgGroup, Parser};
use matrix::Matrix;
use report::{about, append};
use ringtune_tests::{
    chaos::{
        self,
        modes::{calm, kills, random, ranks},
        results::section,
        say,
    },
    places,
};

/// Plays rows of the fault matrix again and again, or measures something longer, and appends what came out to
/// tests/chaos/RESULTS.md.
///
/// Every round of a row has a seed of its own, which is printed and which RINGTUNE_CHAOS_SEED gives to the row's test.
/// Exit code 0: everything went as it should; 1: something did not, or broke.
#[derive(Parser, Debug, Clone)]
#[command(
    name = "chaos",
    group = ArgGroup::new("instead").args(["kills", "calm", "minutes", "ranks"]),
    after_help = "Examples:\n  make chaos ROUNDS=20 JOBS=3\n  make chaos ROUNDS=100 ROWS='a_worker_dies rank_0'\n  \
        make chaos ROUNDS=20 ROWS=real\n  make chaos TLS=1 JOBS=3\n  make chaos KILLS=200 JOBS=3\n  make chaos CALM=30\n  \
        make chaos MINUTES=30\n  make chaos RANKS=64"
)]
struct Arguments {
    /// Rounds of each row
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "instead")]
    rounds: usize,
    /// Rows, or rings of --kills, beside each other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Instead of the matrix: kill so many ranks at random moments
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    kills: Option<u64>,
    /// Instead of the matrix: so many minutes without faults, beside busy loops
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=1440))]
    calm: Option<u64>,
    /// Instead of the matrix: so many minutes of faults at random on many jobs
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: Option<u64>,
    /// Instead of the matrix: rings of 2, 4, 8 … ranks, up to so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=1024))]
    ranks: Option<u64>,
    /// Where all seeds come from [default: the clock]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Where the section is appended
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Rows whose names have one of these texts; none: all of fake workers but those that take long. Those of real ones
    /// have real or full_size in their names
    #[arg(conflicts_with = "instead")]
    rows: Vec<String>,
    /// What cargo adds
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let played = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(play(&arguments)));
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:?}"));
            ExitCode::FAILURE
        }
    }
}

async fn play(arguments: &Arguments) -> Result<()> {
    let seed = arguments.seed.unwrap_or_else(chaos::seed);
    say(&format!("seed {seed}"));
    let about = about(seed)?;
    let jobs = usize::try_from(arguments.jobs)?;
    // What was measured is kept and shown before it is judged.
    let (text, verdict) = if let Some(kills) = arguments.kills {
        let killed = Box::pin(kills::play(usize::try_from(kills)?, jobs, seed)).await?;
        (kills::section(&about, jobs, &killed), kills::judge(&killed))
    } else if let Some(minutes) = arguments.calm {
        let calm = Box::pin(calm::play(minutes, seed)).await?;
        (calm::section(&about, &calm), Ok(()))
    } else if let Some(minutes) = arguments.minutes {
        let kept = Box::pin(random::play(minutes, seed)).await?;
        (random::section(&about, &kept), kept.judge())
    } else if let Some(most) = arguments.ranks {
        let steps = Box::pin(ranks::play(usize::try_from(most)?, seed)).await?;
        (ranks::section(&about, &steps), Ok(()))
    } else {
        let rounds = arguments.rounds;
        let matrix = Matrix { rows: arguments.rows.clone(), rounds, jobs, seed };
        let played = Box::pin(matrix::play(&matrix)).await?;
        (section(&about, rounds, jobs, &played), matrix::judge(&played))
    };
    let file =
        arguments.results.clone().unwrap_or_else(|| places::repository().join("tests/chaos/RESULTS.md"));
    append(&file, &text)?;
    say(&text);
    verdict
}
