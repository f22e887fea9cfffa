//! Thousands of random schedules of a whole cluster: the coordinator's real core, and the worker's real state machine,
//! with a simulated network, clock, disk, ring and lives of ranks. Everything that can go wrong does, for some seconds;
//! then every job must come to its end, with every step once, each with the state that it has where nothing goes wrong.
//!
//! A failing schedule prints its seed: `RINGTUNE_SCHEDULE_SEED=N cargo nextest run --release --workspace --no-capture
//! -E 'binary(schedules) & test(replay)'` plays it with a trace. `RINGTUNE_SCHEDULES=N` plays N schedules more,
//! `RINGTUNE_SCHEDULES_FROM=N` others.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test reports by panicking")]

mod chain;
mod chance;
mod check;
mod coordinator;
mod entering;
mod events;
mod faults;
mod files;
mod life;
mod node;
mod ring;
mod script;
mod words;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use faults::Planted;
use world::World;

/// Schedules in every run of the tests; `make nightly` plays 40,000 more.
const SCHEDULES: u64 = 10_000;

/// Plays one schedule. What was wrong, if anything was.
fn play(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let played = catch_unwind(AssertUnwindSafe(|| World::new(seed, planted, false).run()));
    played.map_err(|problem| {
        let text = problem.downcast_ref::<String>().cloned();
        text.or_else(|| problem.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}

/// A panic is an outcome here, which is told once.
fn be_quiet() {
    std::panic::set_hook(Box::new(|_| {}));
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn random_schedules() {
    be_quiet();
    let first = number("RINGTUNE_SCHEDULES_FROM").unwrap_or(0);
    let schedules = number("RINGTUNE_SCHEDULES").unwrap_or(0) + SCHEDULES;
    for seed in first..first + schedules {
        if let Err(problem) = play(seed, None) {
            let _ = std::panic::take_hook();
            panic!("RINGTUNE_SCHEDULE_SEED={seed}: {problem}");
        }
    }
}

/// The schedules find a fault within so many seeds, in which they find nothing without it: [`random_schedules`] plays those too.
#[expect(clippy::print_stdout, reason = "what found it, for people")]
fn is_found(planted: Planted, within: u64) {
    be_quiet();
    let found = (0..within).find_map(|seed| Some((seed, play(seed, Some(planted)).err()?)));
    let _ = std::panic::take_hook();
    let (seed, problem) = found.unwrap_or_else(|| panic!("{planted:?} is not found"));
    println!("{planted:?} is found by seed {seed}: {problem}");
    assert_eq!(play(seed, None), Ok(()));
}

#[test]
fn a_skipped_epoch_check_is_found() {
    is_found(Planted::SkippedEpochCheck, 1_000);
}

#[test]
fn a_lost_acknowledgement_is_found() {
    is_found(Planted::LostAcknowledgement, 1_000);
}

#[test]
fn a_doubled_step_is_found() {
    is_found(Planted::DoubledStep, 1_000);
}

#[test]
fn a_wrong_order_of_the_sum_is_found() {
    is_found(Planted::OrderOfSum, 1_000);
}

#[test]
fn a_checkpoint_deleted_early_is_found() {
    is_found(Planted::CheckpointDeletedEarly, 1_000);
}

#[test]
fn a_state_taken_from_one_that_is_behind_is_found() {
    is_found(Planted::StateFromBehind, 1_000);
}

#[test]
fn replay_one_schedule() {
    let seed = number("RINGTUNE_SCHEDULE_SEED").unwrap_or(7);
    let mut world = World::new(seed, None, true);
    let played = catch_unwind(AssertUnwindSafe(|| world.run()));
    for line in world.trace.unwrap_or_default() {
        println!("{line}");
    }
    assert!(played.is_ok(), "RINGTUNE_SCHEDULE_SEED={seed}");
}
