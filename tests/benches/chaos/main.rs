//! `make chaos`: rounds of the fault matrix, and what they measured.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use ringtune_tests::{
    chaos::{
        self, Outcome,
        results::{About, Rounds, section},
        rows, say,
    },
    places,
};

/// Plays rows of the fault matrix again and again, and appends what they measured to tests/chaos/RESULTS.md.
///
/// Every round of a row has a seed of its own, which is printed and which RINGTUNE_CHAOS_SEED gives to the row's test.
/// Exit code 0: all rounds went as they should; 1: one did not, or something broke.
#[derive(Parser, Debug, Clone)]
#[command(
    name = "chaos",
    after_help = "Examples:\n  make chaos ROUNDS=20\n  make chaos ROUNDS=100 ROWS='a_worker_dies rank_0'\n  \
        An hour of everything at random:\n  make chaos ROWS=everything_at_random MINUTES=60"
)]
struct Arguments {
    /// Rounds of each row
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: usize,
    /// How long the row of faults at random lasts [default: as in its test]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: Option<u64>,
    /// Where all seeds come from [default: the clock]
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Where the table is appended
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Rows whose names have one of these texts; none: all
    rows: Vec<String>,
    /// What cargo adds
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let played = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(play(&arguments)));
    played.unwrap_or_else(|error| {
        say(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}

async fn play(arguments: &Arguments) -> Result<ExitCode> {
    let seed = arguments.seed.unwrap_or_else(chaos::seed);
    let mut seeds = chaos::random::Random::new(seed);
    let mut chosen = rows::all();
    chosen.retain(|row| {
        arguments.rows.is_empty() || arguments.rows.iter().any(|text| row.name.contains(&**text))
    });
    ensure!(!chosen.is_empty(), "no row is named so");
    if let Some(minutes) = arguments.minutes {
        chosen.iter_mut().for_each(|row| row.last_for(minutes * 60));
    }
    let mut played: Vec<Rounds> =
        chosen.iter().map(|row| Rounds { name: row.name, ..Rounds::default() }).collect();
    for round in 1..=arguments.rounds {
        for (row, rounds) in chosen.iter().zip(&mut played) {
            let seed = seeds.bits();
            match chaos::run(row, seed).await {
                Ok(Outcome::Passed(measured)) => rounds.passed.push(measured),
                Ok(Outcome::Skipped) => rounds.skipped += 1,
                Err(error) => {
                    say(&format!("round {round} of {}: {error:?}", row.name));
                    rounds.failed.push(seed);
                }
            }
        }
        say(&format!("round {round} of {} is over", arguments.rounds));
    }
    let failed: BTreeSet<&str> =
        played.iter().filter(|rounds| !rounds.failed.is_empty()).map(|rounds| rounds.name).collect();
    let table = section(&about(seed, arguments.rounds)?, &played);
    let file =
        arguments.results.clone().unwrap_or_else(|| places::repository().join("tests/chaos/RESULTS.md"));
    append(&file, &table)?;
    say(&table);
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn append(file: &Path, text: &str) -> Result<()> {
    let mut file = fs::File::options()
        .create(true)
        .append(true)
        .open(file)
        .with_context(|| file.display().to_string())?;
    Ok(file.write_all(text.as_bytes())?)
}

fn about(seed: u64, rounds: usize) -> Result<About> {
    let commit = said("git", &["describe", "--always", "--dirty", "--abbrev=12"])?;
    let day = said("date", &["-u", "+%Y-%m-%d"])?;
    let about = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = about.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or("an unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism()?;
    Ok(About { seed, commit, processor: format!("{name}, {cores} cores"), day, rounds })
}

/// What a command prints.
fn said(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(places::repository()).output();
    let output = output.with_context(|| format!("run {program}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
