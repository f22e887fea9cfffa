//! Coordinators that die or are silent: the ring goes on.

use crate::chaos::row::{Act::*, Ground::*, Row, Who::*, pause};

pub(super) fn rows() -> Vec<Row> {
    let again = [Kill(Coordinator), pause(100..900), StartAgain(Coordinator), pause(200..900)];
    vec![
        Row::new("the_coordinator_dies_again_and_again", 2)
            .steps(150)
            .one_ring()
            .acts([&[Step(20)][..], &again, &again, &again].concat()),
        Row::new("the_coordinator_and_a_worker_die_at_once", 2).steps(100).acts([
            Step(20),
            Kill(Coordinator),
            Kill(Worker(2)),
            pause(100..900),
            StartAgain(Coordinator),
        ]),
        Row::new("the_coordinator_is_silent", 2).steps(150).one_ring().acts([
            Step(20),
            Stop(Coordinator),
            pause(3_000..4_000),
            Continue(Coordinator),
        ]),
        Row { replies_are_lost: true, ..Row::new("answers_to_a_submit_are_lost", 2).one_ring() },
        Row::new("the_coordinators_clock_jumps", 2).on(Clocks).one_ring().acts([
            Step(20),
            Clock(Coordinator, 7_200),
            pause(300..600),
            // Certificates are good for clocks that are behind by an hour at most.
            Clock(Coordinator, -3_000),
        ]),
    ]
}

/// A coordinator that is away for so long that everything which is bounded by minutes would show.
pub(super) fn long() -> Vec<Row> {
    vec![
        Row::new("the_coordinator_is_away_for_eleven_minutes", 2)
            .flags(&["--gradient-takes=200"])
            .steps(3_800)
            .deadline(1_500)
            .one_ring()
            .acts([Step(20), Kill(Coordinator), pause(660_000..661_000), StartAgain(Coordinator)]),
    ]
}
