//! Thousands of random schedules against the pure core: workers come, go, restart, hang, lie dead and
//! come back, rings lose members and take others in, users create and cancel, the coordinator restarts from its stored rows and its disk
//! fails. Invariants are checked after every input, and every schedule must come to an end.
//!
//! A failing schedule prints its seed; `RINGTUNE_SIMULATION_SEED=N cargo nextest run replay` runs it
//! alone.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test reports by panicking")]

mod daemons;
mod invariants;
mod samples;
mod sweeps;
mod thousands;
mod week;
mod world;

use world::World;

/// Faults and requests at random, then only well-behaved workers until nothing is left to do.
fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..400 {
        world.random_event();
        world.check();
    }
    world.settle();
}

/// A number from the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// `RINGTUNE_SIMULATIONS=N` plays that many, as `make nightly` does, `RINGTUNE_SIMULATION_FIRST=N` others.
#[test]
fn random_schedules_keep_the_invariants() {
    let first = number("RINGTUNE_SIMULATION_FIRST", 0);
    for seed in first..first + number("RINGTUNE_SIMULATIONS", 300) {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "schedule failed: RINGTUNE_SIMULATION_SEED={seed}");
    }
}

#[test]
fn replay_one_schedule() {
    run(number("RINGTUNE_SIMULATION_SEED", 7));
}

#[test]
fn the_same_seed_gives_the_same_schedule() {
    let trace = |seed| {
        let mut world = World::new(seed);
        for _ in 0..300 {
            world.random_event();
        }
        world.summary()
    };
    assert_eq!(trace(11), trace(11));
    assert_ne!(trace(11), trace(12));
}
