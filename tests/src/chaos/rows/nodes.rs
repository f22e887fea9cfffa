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
    ]
}
