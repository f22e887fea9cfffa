//! Kills rank after rank at random moments; each comes back.

use std::{
    fmt::Write as _,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::{task::JoinSet, time::sleep};

use super::{ENDLESS, PATIENCE, Running, compare_states};
use crate::{
    Sandbox,
    chaos::{
        measure::{Measured, measure},
        random::Random,
        results::{About, heading, percentile, seconds},
        row::Row,
        say, story,
    },
    wait::until,
};

/// Ranks of a ring.
const RANKS: usize = 4;
/// A loss is known within this.
const DETECTED: Duration = Duration::from_secs(3);
/// And from then on the others compute again within this.
const AGAIN: Duration = Duration::from_secs(5);
/// So much before a kill the newest step of the ring before it came, or nothing has to be measured.
const BEFORE: Duration = Duration::from_secs(10);

/// Cost of a kill.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    /// The rank that was killed.
    pub rank: usize,
    /// Its cost.
    pub measured: Measured,
}

/// Kills so many ranks, in `rings` rings beside each other. In the end each ring's states are those without faults.
///
/// # Errors
/// A ring did not go on, a worker did not come in again, or a state was another one.
pub async fn play(kills: usize, rings: usize, seed: u64) -> Result<Vec<Kill>> {
    let begun = Arc::new(AtomicUsize::new(0));
    let (mut seeds, mut players) = (Random::new(seed), JoinSet::new());
    for _ in 0..rings {
        players.spawn(ring(seeds.bits(), kills, Arc::clone(&begun)));
    }
    let (mut all, mut states) = (Vec::new(), Vec::new());
    while let Some(player) = players.join_next().await {
        let (of_ring, states_of_ring) = player??;
        all.extend(of_ring);
        states.push(states_of_ring);
    }
    compare_states(&row(), &states).await?;
    Ok(all)
}

fn row() -> Row {
    Row::new("kills", RANKS).steps(ENDLESS)
}

/// Kills in one ring until there were enough in all of them.
async fn ring(seed: u64, kills: usize, begun: Arc<AtomicUsize>) -> Result<(Vec<Kill>, Vec<String>)> {
    let sandbox = Sandbox::new()?;
    let mut running = Running::begin(&sandbox, &row(), seed).await?;
    let mut done = Vec::new();
    loop {
        let number = begun.fetch_add(1, Ordering::Relaxed) + 1;
        if number > kills {
            break;
        }
        let killed = Box::pin(kill(&mut running)).await;
        let kill = killed.with_context(|| format!("{}\nin kill {number}, seed {seed}", running.shown()))?;
        say(&format!("kill {number} of {kills}: rank {}, {:?}", kill.rank, kill.measured));
        done.push(kill);
    }
    let states = running.states().await?;
    Ok((done, states))
}

async fn kill(running: &mut Running<'_>) -> Result<Kill> {
    // 1. A rank at a moment.
    sleep(running.stage.random.pause(200..2_500)).await;
    let rank = running.stage.random.within(0..RANKS as u64) as usize;
    let ring = running.story.job().and_then(|job| job.ring).context("a ring")?;
    let worker = &ring.members.get(rank).context("the rank")?.worker_id;
    let mut workers = running.stage.cluster.workers.iter();
    let label = workers.find(|one| one.id == *worker).context("its worker")?.label.clone();
    let (since, epoch) = (Instant::now(), running.story.epoch());
    running.stage.cluster.daemon(&label)?.end().await?;
    // 2. The others go on.
    let story = &running.story;
    let goes_on = || {
        let news = story.events_since(since);
        let newer = news.iter().any(|seen| story::step(seen).is_some_and(|step| step.epoch > epoch));
        ready(Ok(newer.then_some(())))
    };
    until("the others compute again", PATIENCE, goes_on).await?;
    let from = since.checked_sub(BEFORE).unwrap_or(since);
    let measured = measure(&story.events_since(from), &story.sights_since(from), since, epoch)?;
    // 3. It comes back.
    running.stage.start_again(&label).await?;
    running.wait_until_whole(RANKS).await?;
    Ok(Kill { rank, measured })
}

/// Whether the bounds are kept.
///
/// # Errors
/// The bound that is not, and by how much.
pub fn judge(kills: &[Kill]) -> Result<()> {
    let figures = Figures::of(kills).context("nothing was killed")?;
    let [(_, detect, _), (_, again, _)] = [figures.detect, figures.again];
    ensure!(detect <= DETECTED, "p99 until a loss is known is {} s, {DETECTED:?} allowed", seconds(detect));
    ensure!(again <= AGAIN, "p99 until the ring computes again is {} s, {AGAIN:?} allowed", seconds(again));
    ensure!(figures.lost == 0, "{} steps were lost", figures.lost);
    Ok(())
}

/// p50, p99 and the most of each time, and all steps lost.
struct Figures {
    detect: (Duration, Duration, Duration),
    again: (Duration, Duration, Duration),
    lost: i64,
}

impl Figures {
    fn of(kills: &[Kill]) -> Option<Self> {
        let three = |time: fn(&Measured) -> Option<Duration>| {
            let times: Option<Vec<Duration>> = kills.iter().map(|kill| time(&kill.measured)).collect();
            let times = times?;
            Some((percentile(&times, 50)?, percentile(&times, 99)?, percentile(&times, 100)?))
        };
        Some(Self {
            detect: three(|measured| measured.detect)?,
            again: three(|measured| measured.resume)?,
            lost: kills.iter().map(|kill| kill.measured.steps_lost).sum(),
        })
    }
}

/// Its section of tests/chaos/RESULTS.md.
pub fn section(about: &About, rings: usize, kills: &[Kill]) -> String {
    let rank_0 = kills.iter().filter(|kill| kill.rank == 0).count();
    let what = format!(
        "{} ranks killed with SIGKILL at random moments, {rank_0} of them rank 0, in {rings} ring(s) of {RANKS} fake \
         workers beside each other",
        kills.len()
    );
    let mut text = heading(about, "Kills", &what);
    let Some(Figures { detect, again, lost }) = Figures::of(kills) else { return text };
    text.push_str("| | p50 (s) | p99 (s) | Most (s) | Bound of p99 (s) |\n|---|---|---|---|---|\n");
    for (name, (median, most_of_all, most), bound) in
        [("Detected", detect, DETECTED), ("Computes again after that", again, AGAIN)]
    {
        let [median, most_of_all, most] = [median, most_of_all, most].map(seconds);
        let _ = writeln!(text, "| {name} | {median} | {most_of_all} | {most} | {} |", bound.as_secs());
    }
    let _ = writeln!(text, "\nSteps lost: {lost}. Every state is the one of a run without faults.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::results::about;

    fn kills(slow: u64, again: u64, steps_lost: i64) -> Vec<Kill> {
        let kill = |number: u64| Kill {
            rank: (number % 4) as usize,
            measured: Measured {
                detect: Some(Duration::from_millis(if number < 3 { slow } else { 20 })),
                resume: Some(Duration::from_millis(again)),
                steps_lost,
            },
        };
        (0..200).map(kill).collect()
    }

    #[test]
    fn each_bound_is_checked() {
        assert!(judge(&kills(2_900, 4_900, 0)).is_ok());
        let problem = |kills: &[Kill]| judge(kills).unwrap_err().to_string();
        // Three of two hundred are more than one in a hundred.
        assert!(problem(&kills(3_100, 10, 0)).contains("is known is 3.10 s"));
        assert!(problem(&kills(20, 5_100, 0)).contains("computes again is 5.10 s"));
        assert!(problem(&kills(20, 10, 1)).contains("200 steps were lost"));
        assert!(problem(&[]).contains("nothing was killed"));
    }

    #[test]
    fn a_kill_of_which_no_sign_was_seen_is_no_result() {
        let mut kills = kills(20, 10, 0);
        kills[7].measured.detect = None;
        assert!(judge(&kills).is_err());
    }

    #[test]
    fn the_section_has_all_figures() {
        let text = section(&about(), 3, &kills(2_000, 1_000, 0));
        assert!(
            text.contains("200 ranks killed with SIGKILL at random moments, 50 of them rank 0, in 3"),
            "{text}"
        );
        assert!(text.contains("| Detected | 0.02 | 2.00 | 2.00 | 3 |"), "{text}");
        assert!(text.contains("| Computes again after that | 1.00 | 1.00 | 1.00 | 5 |"), "{text}");
        assert!(text.contains("Steps lost: 0."), "{text}");
    }
}
