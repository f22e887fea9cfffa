//! Rings of more and more ranks on one machine: what a step takes beyond the engine's own time.

use std::{fmt::Write as _, time::Duration};

use anyhow::{Context as _, Result};
use ringtune_proto::v1::StepReport;

use crate::{
    Sandbox,
    chaos::{
        clean,
        random::Random,
        results::{About, heading, percentile},
        row::Row,
        runner::{ending, logs, told},
        say,
        stage::Stage,
        story::{self, Story},
        verdict,
    },
};

/// Rows and their length: a word of Stable Diffusion 1.5, and a state of a million floats.
const STATES: [(i64, usize, i64); 2] = [(1, 768, 60), (64, 16_384, 6)];
/// Duration of the engine's gradients: it sleeps, so that it costs the other ranks nothing.
const ENGINE: &str = "--gradient-takes=20";
/// The first steps set everything up.
const FIRST: i64 = 2;
/// Every rank holds the gradients of all: all of them together may be so large.
const MEMORY: usize = 4 << 30;

/// A ring's median step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Ranks of the ring.
    pub ranks: usize,
    /// Floats of a gradient.
    pub floats: usize,
    /// Duration of a step at rank 0.
    pub whole: Duration,
    /// Of that in rank 0's engine.
    pub engine: Duration,
}

/// Rings of 2, 4, 8 … ranks, up to `most`, each with a small and a large state.
///
/// # Errors
/// A job did not succeed.
pub async fn play(most: usize, seed: u64) -> Result<Vec<Step>> {
    let mut seeds = Random::new(seed);
    let mut measured = Vec::new();
    for (vectors, width, steps) in STATES {
        let floats = width * vectors.unsigned_abs() as usize;
        let sizes = std::iter::successors(Some(2), |ranks| Some(ranks * 2));
        for ranks in sizes.take_while(|ranks| *ranks <= most && fits(*ranks, floats)) {
            let row = Row { deadline: 1_800, ..Row::new("ranks", ranks).steps(steps + FIRST) }
                .flags(&[&format!("--text-width={width}"), ENGINE])
                .key("train.num_vectors", vectors);
            let step = Box::pin(one(&row, floats, seeds.bits())).await?;
            say(&format!("{step:?}"));
            measured.push(step);
        }
    }
    Ok(measured)
}

fn fits(ranks: usize, floats: usize) -> bool {
    ranks * ranks * floats * size_of::<f32>() <= MEMORY
}

async fn one(row: &Row, floats: usize, seed: u64) -> Result<Step> {
    let sandbox = Sandbox::new()?;
    let stage = Stage::set(&sandbox, row, seed).await?.context("loopback")?;
    let job_file = sandbox.write_job("job.toml", &clean::job(row)?)?;
    let story = Story::follow(&stage.cluster.coordinator.door(), &stage.cluster.submit(&job_file).await?)?;
    let measured = async {
        verdict::succeeded(&ending(&story, Duration::from_secs(row.deadline)).await?)?;
        let events = story.events();
        let steps: Vec<&StepReport> = events.iter().filter_map(story::step).collect();
        step_of(row.workers.len(), floats, &steps).context("no steps")
    };
    measured
        .await
        .with_context(|| format!("{}\n{}\n{} ranks", logs(&sandbox), told(&story), row.workers.len()))
}

fn step_of(ranks: usize, floats: usize, steps: &[&StepReport]) -> Option<Step> {
    let median = |time: fn(&StepReport) -> f64| {
        let later = steps.iter().filter(|step| step.step > FIRST);
        let times: Vec<Duration> = later.map(|step| Duration::from_secs_f64(time(step).max(0.0))).collect();
        percentile(&times, 50)
    };
    let (whole, engine) = (median(|step| step.step_seconds)?, median(|step| step.compute_seconds)?);
    Some(Step { ranks, floats, whole, engine })
}

/// Its section of tests/chaos/RESULTS.md.
pub fn section(about: &About, steps: &[Step]) -> String {
    let most = steps.iter().map(|step| step.ranks).max().unwrap_or_default();
    let what = format!("Rings of up to {most} fake ranks, all on one machine with its coordinator");
    let mut text = heading(about, "Large rings", &what);
    text.push_str(
        "| Floats | Ranks | Step (ms) | Engine of rank 0 (ms) | Beyond it (ms) | Messages a step, all ranks | Sent by a rank (MB) | Beyond it, a message (µs) |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for Step { ranks, floats, whole, engine } in steps {
        let beyond = whole.saturating_sub(*engine);
        let milliseconds = |time: Duration| format!("{:.2}", time.as_secs_f64() * 1e3);
        let messages = ranks * (ranks - 1);
        let megabytes = ((ranks - 1) * floats * size_of::<f32>()) as f64 / 1e6;
        let _ = writeln!(
            text,
            "| {floats} | {ranks} | {} | {} | {} | {messages} | {megabytes:.3} | {:.0} |",
            milliseconds(*whole),
            milliseconds(*engine),
            milliseconds(beyond),
            beyond.as_secs_f64() * 1e6 / messages as f64
        );
    }
    text.push_str(
        "\nEvery rank has one microbatch, and hands on those of all others: n - 1 messages a rank and n (n - 1) in all, each \
         of the size of the gradient; and each rank updates the state and hashes it by itself. With a machine a rank all of \
         that goes side by side, and a step's cost grows with n. Here all ranks share the cores of one machine: what each \
         does once grows with n and shows where there are few, the messages grow with n (n - 1) and decide where there \
         are many. The last column falls towards the cost of one message: the wake-up of a process where the gradient is \
         small, the copies, checksums and sums of its bytes where it is large. Every rank holds the gradients of all; \
         sizes for which that is more than 4 GB on this machine are left out.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::results::about;

    #[test]
    fn the_median_of_the_later_steps_counts_and_what_is_beyond_the_engine_is_shown() {
        let report = |step, step_seconds, compute_seconds| StepReport {
            step,
            step_seconds,
            compute_seconds,
            ..Default::default()
        };
        let reports = [
            report(1, 9.0, 9.0),
            report(2, 9.0, 9.0),
            report(3, 0.020, 0.004),
            report(4, 0.016, 0.004),
            report(5, 0.500, 0.004),
        ];
        let step = step_of(4, 768, &reports.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!((step.whole, step.engine), (Duration::from_millis(20), Duration::from_millis(4)));
        let text = section(&about(), &[step]);
        assert!(text.contains("| 768 | 4 | 20.00 | 4.00 | 16.00 | 12 | 0.009 | 1333 |"), "{text}");
        assert_eq!(step_of(4, 768, &[]), None);
    }

    #[test]
    fn a_ring_that_needs_too_much_memory_is_left_out() {
        assert!(fits(64, 768) && fits(32, 1 << 20) && !fits(64, 1 << 20));
    }
}
