//! Rings on a machine that has too much to do: nobody dies, so nobody may be taken for dead.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    process::{Child, Command},
    time::sleep,
};

use super::{ENDLESS, Running};
use crate::{
    Sandbox,
    chaos::{
        random::Random,
        results::{About, heading, seconds},
        row::Row,
        say, story,
    },
};

/// Processes that do nothing but compute.
const LOOPS: usize = 4;
/// Rings beside each other.
const RINGS: usize = 2;
/// Ranks of each.
const RANKS: usize = 4;
/// Every ring makes a step within this.
const STEP: Duration = Duration::from_secs(60);

/// Observations.
#[derive(Clone, Debug, PartialEq)]
pub struct Calm {
    /// Duration.
    pub minutes: u64,
    /// Steps of each ring.
    pub steps: Vec<i64>,
    /// The longest time between two steps of a ring.
    pub longest: Duration,
}

/// Lets rings step for so many minutes beside busy loops.
///
/// # Errors
/// A ring changed, a member was taken for lost, or no step came for a minute.
pub async fn play(minutes: u64, seed: u64) -> Result<Calm> {
    let mut seeds = Random::new(seed);
    let sandboxes = [Sandbox::new()?, Sandbox::new()?];
    let row = Row::new("calm", RANKS).steps(ENDLESS).flags(&["--gradient-takes=100"]);
    let mut rings = Vec::new();
    for sandbox in sandboxes.iter().take(RINGS) {
        rings.push(Running::begin(sandbox, &row, seeds.bits()).await?);
    }
    let loops: Vec<Child> = (0..LOOPS).map(|_| busy_loop()).collect::<Result<_>>()?;
    let start = Instant::now();
    let before: Vec<i64> = rings.iter().map(|ring| ring.story.step()).collect();
    for minute in 1..=minutes {
        while start.elapsed() < Duration::from_secs(60 * minute) {
            sleep(Duration::from_secs(1)).await;
            for ring in &rings {
                undisturbed(ring, start).with_context(|| format!("{}\nin minute {minute}", ring.shown()))?;
            }
        }
        let steps: Vec<i64> = rings.iter().map(|ring| ring.story.step()).collect();
        say(&format!("minute {minute} of {minutes}: steps {steps:?}"));
    }
    ensure!(loops.iter().all(|one| one.id().is_some()), "a busy loop ended");
    let steps = rings.iter().zip(before).map(|(ring, before)| ring.story.step() - before).collect();
    let pauses = rings.iter().flat_map(|ring| pauses(&ring.story.events_since(start)));
    Ok(Calm { minutes, steps, longest: pauses.max().context("no step was made")? })
}

fn busy_loop() -> Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).kill_on_drop(true);
    command.spawn().context("a busy loop")
}

/// The ring is the first one still, nobody was taken for lost, and it moves.
fn undisturbed(ring: &Running<'_>, start: Instant) -> Result<()> {
    let story = &ring.story;
    ensure!(story.epoch() == 1, "the ring changed: epoch {}", story.epoch());
    let sign = story.sights().into_iter().find(|sight| sight.tells_of_a_loss(1));
    ensure!(sign.is_none(), "a loss was seen although there was none: {sign:?}");
    let since = Instant::now().checked_sub(STEP).unwrap_or(start).max(start);
    let stepped = story.events_since(since).iter().any(|seen| story::step(seen).is_some());
    ensure!(stepped || since.elapsed() < STEP, "no step in {} s", STEP.as_secs());
    Ok(())
}

/// The times between the steps.
fn pauses(events: &[story::Seen]) -> Vec<Duration> {
    let steps: Vec<Instant> =
        events.iter().filter(|seen| story::step(seen).is_some()).map(|seen| seen.at).collect();
    steps.iter().zip(steps.iter().skip(1)).map(|(one, next)| next.duration_since(*one)).collect()
}

/// Its section of tests/chaos/RESULTS.md.
pub fn section(about: &About, calm: &Calm) -> String {
    let what = format!(
        "{RINGS} rings of {RANKS} fake workers for {} minutes beside {LOOPS} busy loops",
        calm.minutes
    );
    let steps: Vec<String> = calm.steps.iter().map(i64::to_string).collect();
    format!(
        "{}No ring changed and no member was taken for lost. Steps: {}; the longest time between two was {} s.\n",
        heading(about, "Without faults", &what),
        steps.join(" and "),
        seconds(calm.longest)
    )
}

#[cfg(test)]
mod tests {
    use ringtune_proto::v1::{self, job_event::Event};

    use super::*;
    use crate::chaos::{results::about, story::Seen};

    #[test]
    fn the_longest_time_between_two_steps_counts() {
        let start = Instant::now();
        let seen = |at, event| Seen { at: start + Duration::from_millis(at), event };
        let step = |at| seen(at, Event::Step(v1::StepReport::default()));
        let line = |at| seen(at, Event::Log(v1::LogLine::default()));
        let events = [line(0), step(100), line(150), step(400), step(450)];
        assert_eq!(pauses(&events), [300, 50].map(Duration::from_millis));
        let calm = Calm { minutes: 30, steps: vec![9, 8], longest: Duration::from_millis(300) };
        let text = section(&about(), &calm);
        assert!(text.contains("for 30 minutes beside 4 busy loops, seed 5"), "{text}");
        assert!(text.contains("Steps: 9 and 8; the longest time between two was 0.30 s."), "{text}");
    }
}
