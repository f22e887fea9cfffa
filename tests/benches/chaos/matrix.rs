//! Rounds of the matrix, several rows beside each other.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Result, ensure};
use ringtune_tests::chaos::{
    self, Measured, Outcome, Row,
    random::Random,
    results::{Rounds, seconds},
    rows, say,
};
use ringtune_tests::{job::text, reference};
use tokio::task::JoinSet;

/// Rows and rounds to play.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    pub(crate) rows: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) jobs: usize,
    pub(crate) seed: u64,
}

/// A row of a round.
struct Play {
    round: usize,
    index: usize,
    row: Row,
    seed: u64,
}

/// Plays the rounds, with a line for each row.
pub(crate) async fn play(matrix: &Matrix) -> Result<Vec<Rounds>> {
    let chosen = chosen(&matrix.rows).await?;
    ensure!(!chosen.is_empty(), "no row is named so");
    let played = chosen.iter().map(|row| Rounds { name: row.name, ..Rounds::default() }).collect();
    let played: Arc<Mutex<Vec<Rounds>>> = Arc::new(Mutex::new(played));
    let mut seeds = Random::new(matrix.seed);
    let mut plays = VecDeque::new();
    for round in 1..=matrix.rounds {
        let rows = chosen.iter().cloned().enumerate();
        plays.extend(rows.map(|(index, row)| Play { round, index, row, seed: seeds.bits() }));
    }
    let plays = Arc::new(Mutex::new(plays));
    let mut players = JoinSet::new();
    for _ in 0..matrix.jobs {
        players.spawn(play_all(Arc::clone(&plays), Arc::clone(&played), matrix.rounds));
    }
    while let Some(player) = players.join_next().await {
        player?;
    }
    let played = played.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(played.clone())
}

/// The named rows; slow ones, and those with libtorch, only if named.
async fn chosen(names: &[String]) -> Result<Vec<Row>> {
    if names.is_empty() {
        return Ok(rows::all());
    }
    let is_named = |row: &Row| names.iter().any(|name| row.name.contains(&**name));
    let mut chosen = [rows::all(), rows::long(), rows::torch::small()].concat();
    if rows::torch::full_size("").iter().any(is_named) {
        let model = reference::full_size_checkpoint().await?;
        chosen.extend(rows::torch::full_size(&text(&model)));
    }
    chosen.retain(is_named);
    Ok(chosen)
}

async fn play_all(plays: Arc<Mutex<VecDeque<Play>>>, played: Arc<Mutex<Vec<Rounds>>>, rounds: usize) {
    loop {
        let next = plays.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(Play { round, index, row, seed }) = next else { return };
        let start = Instant::now();
        let outcome = Box::pin(chaos::run(&row, seed)).await;
        let took = seconds(start.elapsed());
        let mut played = played.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(rounds_of_row) = played.get_mut(index) else { return };
        let went = match outcome {
            Ok(Outcome::Passed(measured)) => {
                rounds_of_row.passed.push(measured);
                told(measured)
            }
            Ok(Outcome::Skipped) => {
                rounds_of_row.skipped += 1;
                "skipped".to_owned()
            }
            Err(error) => {
                say(&format!("{error:?}"));
                rounds_of_row.failed.push(seed);
                "FAILED".to_owned()
            }
        };
        say(&format!("round {round} of {rounds}: {}: {went} ({took} s)", row.name));
    }
}

fn told(measured: Measured) -> String {
    let time = |time: Option<_>| time.map_or("–".to_owned(), |time| format!("{} s", seconds(time)));
    let Measured { detect, resume, steps_lost } = measured;
    format!("passed, detected {}, again after {}, {steps_lost} lost", time(detect), time(resume))
}

/// Whether all rounds went as they should.
pub(crate) fn judge(played: &[Rounds]) -> Result<()> {
    let failed: Vec<&str> =
        played.iter().filter(|rounds| !rounds.failed.is_empty()).map(|rounds| rounds.name).collect();
    ensure!(failed.is_empty(), "these failed: {}", failed.join(", "));
    Ok(())
}
