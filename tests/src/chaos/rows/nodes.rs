//! Nodes that run out of something, and clocks that jump.

use crate::chaos::row::{Act, Act::*, Ground::*, Row, Who::*, pause};

/// Bytes of a daemon's disk.
const DISK: u64 = 32 << 20;

pub(super) fn rows() -> Vec<Row> {
    let without_files = |name, who| {
        Row::new(name, 2).acts([Step(20), NoDescriptors(who), pause(500..1_000), Descriptors(who)])
    };
    vec![
        Row::new("a_workers_disk_is_full", 2)
            .on(SmallDisks(DISK))
            .key("train.checkpointing_steps", 5)
            .acts([Step(20), FillDisk(Rank(0))]),
        Row::new("the_coordinators_disk_is_full_for_a_while", 2)
            .on(SmallDisks(DISK))
            .steps(120)
            .key("train.checkpointing_steps", 5)
            .acts([Step(20), FillDisk(Coordinator), pause(1_000..2_000), FreeDisk(Coordinator)]),
        at_the_end("the_coordinators_disk_is_full_at_the_end", 1, 12),
        low_at_the_end("the_coordinators_disk_is_low_at_the_end", 2, 12),
        without_files("a_worker_can_open_no_more_files", Rank(1)),
        without_files("the_coordinator_can_open_no_more_files", Coordinator).one_ring(),
        Row::new("the_clocks_of_workers_jump", 2).on(Clocks).one_ring().acts([
            Step(20),
            Clock(Rank(0), 7_200),
            Clock(Rank(1), -7_200),
            pause(300..600),
            Clock(Rank(0), 0),
        ]),
        // By its own clock nobody's certificate is good yet: it enters no ring until its clock is right. Of the two that are left
        // the one with the lower rank goes on, which is not that one.
        Row::new("a_workers_clock_is_three_hours_behind", 3)
            .on(Clocks)
            .over_tls()
            .flags(&["--gradient-takes=100"])
            .steps(250)
            .within(6)
            .deadline(120)
            .acts([
                Step(20),
                Clock(Rank(2), -10_800),
                Kill(Rank(1)),
                Members(1),
                Add,
                Members(2),
                SetClocksRight,
                Members(3),
            ]),
    ]
}

/// As above for long, by number of workers and phase.
pub(super) fn long() -> Vec<Row> {
    vec![
        at_the_end("the_coordinators_disk_is_full_for_forty_seconds_at_the_end", 3, 40),
        at_the_end("the_coordinators_disk_is_full_for_ten_minutes_at_the_end", 2, 600),
        low_at_the_end("the_coordinators_disk_is_low_for_ten_minutes_at_the_end", 1, 600),
        Row::new("the_coordinators_disk_is_full_while_a_job_prepares", 2)
            .on(SmallDisks(DISK))
            .one_ring()
            .deadline(200)
            .acts([Preparing, FillDisk(Coordinator), pause(40_000..41_000), FreeDisk(Coordinator)]),
        Row::new("the_coordinators_disk_is_full_while_a_job_trains", 3)
            .on(SmallDisks(DISK))
            .steps(2_000)
            .one_ring()
            .key("train.checkpointing_steps", 100)
            .deadline(300)
            .acts([Step(20), FillDisk(Coordinator), pause(40_000..41_000), FreeDisk(Coordinator)]),
    ]
}

/// Seconds without any room on the coordinator's disk, from before the last step on.
fn at_the_end(name: &'static str, workers: usize, seconds: u64) -> Row {
    short_at_the_end(name, workers, seconds, &[Step(20), FillDisk(Coordinator)]).on(SmallDisks(DISK))
}

/// Seconds with less room than is kept free: events are stored, but no files.
fn low_at_the_end(name: &'static str, workers: usize, seconds: u64) -> Row {
    let short = [Step(10), CrowdDisk(Coordinator), Step(60), Says("waiting: ")];
    short_at_the_end(name, workers, seconds, &short).on(LowDisks(DISK, DISK / 4))
}

fn short_at_the_end(name: &'static str, workers: usize, seconds: u64, short: &[Act]) -> Row {
    let long = pause(1_000 * seconds..1_000 * seconds + 500);
    Row::new(name, workers)
        .key("train.checkpointing_steps", 20)
        .one_ring()
        .deadline(seconds + 60)
        .acts([short, &[Waits("waiting: "), long, FreeDisk(Coordinator)]].concat())
}
