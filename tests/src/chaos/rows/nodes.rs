//! Nodes that run out of something, and clocks that jump.

use crate::chaos::row::{Act, Ground, Row, Who, pause};

/// Bytes of a daemon's disk.
const DISK: u64 = 32 << 20;

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new("a_workers_disk_is_full", 2)
            .on(Ground::SmallDisks(DISK))
            .key("train.checkpointing_steps", 5)
            .acts([Act::Step(20), Act::FillDisk(Who::Rank(0))]),
        Row::new("the_coordinators_disk_is_full_for_a_while", 2)
            .on(Ground::SmallDisks(DISK))
            .steps(120)
            .key("train.checkpointing_steps", 5)
            .acts([
                Act::Step(20),
                Act::FillDisk(Who::Coordinator),
                pause(1_000..2_000),
                Act::FreeDisk(Who::Coordinator),
            ]),
        at_the_end("the_coordinators_disk_is_full_at_the_end", 1, 12),
        low_at_the_end("the_coordinators_disk_is_low_at_the_end", 2, 12),
        Row::new("a_worker_can_open_no_more_files", 2).acts([
            Act::Step(20),
            Act::NoDescriptors(Who::Rank(1)),
            pause(500..1_000),
            Act::Descriptors(Who::Rank(1)),
        ]),
        Row::new("the_coordinator_can_open_no_more_files", 2).one_ring().acts([
            Act::Step(20),
            Act::NoDescriptors(Who::Coordinator),
            pause(500..1_000),
            Act::Descriptors(Who::Coordinator),
        ]),
        Row::new("the_clocks_of_workers_jump", 2).on(Ground::Clocks).one_ring().acts([
            Act::Step(20),
            Act::Clock(Who::Rank(0), 7_200),
            Act::Clock(Who::Rank(1), -7_200),
            pause(300..600),
            Act::Clock(Who::Rank(0), 0),
        ]),
        // By its own clock nobody's certificate is good yet: it enters no ring until its clock is right. Of the two that are left
        // the one with the lower rank goes on, which is not that one.
        Row::new("a_workers_clock_is_three_hours_behind", 3)
            .on(Ground::Clocks)
            .over_tls()
            .flags(&["--gradient-takes=100"])
            .steps(250)
            .within(6)
            .deadline(120)
            .acts([
                Act::Step(20),
                Act::Clock(Who::Rank(2), -10_800),
                Act::Kill(Who::Rank(1)),
                Act::Members(1),
                Act::Add,
                Act::Members(2),
                Act::SetClocksRight,
                Act::Members(3),
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
            .on(Ground::SmallDisks(DISK))
            .one_ring()
            .deadline(200)
            .acts([
                Act::Preparing,
                Act::FillDisk(Who::Coordinator),
                pause(40_000..41_000),
                Act::FreeDisk(Who::Coordinator),
            ]),
        Row::new("the_coordinators_disk_is_full_while_a_job_trains", 3)
            .on(Ground::SmallDisks(DISK))
            .steps(2_000)
            .one_ring()
            .key("train.checkpointing_steps", 100)
            .deadline(300)
            .acts([
                Act::Step(20),
                Act::FillDisk(Who::Coordinator),
                pause(40_000..41_000),
                Act::FreeDisk(Who::Coordinator),
            ]),
    ]
}

/// Seconds without any room on the coordinator's disk, from before the last step on.
fn at_the_end(name: &'static str, workers: usize, seconds: u64) -> Row {
    Row::new(name, workers)
        .on(Ground::SmallDisks(DISK))
        .key("train.checkpointing_steps", 20)
        .one_ring()
        .deadline(seconds + 60)
        .acts([
            Act::Step(20),
            Act::FillDisk(Who::Coordinator),
            Act::Waits("waiting: "),
            pause(1_000 * seconds..1_000 * seconds + 500),
            Act::FreeDisk(Who::Coordinator),
        ])
}

/// Seconds with less room than is kept free: events are stored, but no files.
fn low_at_the_end(name: &'static str, workers: usize, seconds: u64) -> Row {
    Row::new(name, workers)
        .on(Ground::LowDisks(DISK, DISK / 4))
        .key("train.checkpointing_steps", 20)
        .one_ring()
        .deadline(seconds + 60)
        .acts([
            Act::Step(10),
            Act::CrowdDisk(Who::Coordinator),
            Act::Step(60),
            Act::Says("waiting: "),
            Act::Waits("waiting: "),
            pause(1_000 * seconds..1_000 * seconds + 500),
            Act::FreeDisk(Who::Coordinator),
        ])
}
