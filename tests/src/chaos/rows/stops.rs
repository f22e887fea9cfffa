//! Workers that are silent for a while, that end as they are told, and engines that fail.

use crate::chaos::row::{Act::*, Row, Who::*, pause};

pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::new("a_worker_is_silent_for_too_long", 2).steps(120).acts([
            Step(20),
            pause(0..60),
            Stop(Rank(1)),
            pause(4_000..5_000),
            // It has no rank any more; the first one continues.
            Continue(Worker(1)),
            Continue(Worker(2)),
        ]),
        Row::new("rank_0_is_silent_for_too_long", 2).steps(120).acts([
            Step(20),
            pause(0..60),
            Stop(Rank(0)),
            StepOfEpoch(2),
            // Worker 1 continues, whichever is rank 0 now.
            Continue(Worker(1)),
            Continue(Worker(2)),
        ]),
        Row::new("a_worker_is_silent_for_a_moment", 2).one_ring().acts([
            Step(20),
            Stop(Rank(1)),
            pause(500..1_200),
            Continue(Rank(1)),
        ]),
        Row::new("a_worker_ends_as_it_is_told", 2).acts([Step(20), pause(0..60), Terminate(Rank(1))]),
        Row::new("an_engine_hangs", 2)
            .flag_of(1, "--hang-on-gradient=20")
            .deadline(100)
            .acts([Step(19), ByItself]),
        not_a_number(),
    ]
}

/// One rank's gradient of a step is not finite. Whoever computes alone has two gradients a step, so the 39th is the
/// first one of step 20: that step is skipped in both runs.
fn not_a_number() -> Row {
    let mut row = Row::new("one_rank_computes_not_a_number", 2).one_ring();
    row.acts = vec![Step(19), ByItself];
    row.workers[1].push("--not-finite-on-gradient=20".to_owned());
    row.clean_flags.push("--not-finite-on-gradient=39".to_owned());
    row
}
