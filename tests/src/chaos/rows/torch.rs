//! Kills of workers that compute with libtorch.

use crate::{
    chaos::row::{Act::*, Row, Who::*, pause},
    daemon::WORKER,
};

/// On the small checkpoint.
pub fn small() -> Vec<Row> {
    let row = |name| Row { program: WORKER, deadline: 120, ..Row::new(name, 2).flags(&[]).steps(40) };
    let killed = |name, rank| row(name).acts([Step(10), pause(0..300), Kill(Rank(rank))]);
    vec![
        killed("a_real_worker_dies", 1),
        killed("the_real_rank_0_dies", 0),
        row("a_real_worker_dies_while_it_prepares").acts([Preparing, pause(0..300), Kill(Rank(1))]),
        row("a_real_worker_dies_and_comes_back").steps(120).acts([
            Step(10),
            Kill(Worker(2)),
            StartAgain(Worker(2)),
            StepOfEpoch(2),
            Members(2),
        ]),
    ]
}

/// On Stable Diffusion 1.5 in its real size, with the folder of its weights.
pub fn full_size(model: &str) -> Vec<Row> {
    let row = |name, rank| {
        let row = Row::new(name, 2).flags(&[]).steps(6);
        Row { program: WORKER, deadline: 3_600, ..row }
            .key("model.base", model)
            .key("train.resolution", 512)
            .key("train.num_vectors", 2)
            .acts([Step(2), pause(0..10_000), Kill(Rank(rank))])
    };
    vec![row("a_full_size_worker_dies", 1), row("the_full_size_rank_0_dies", 0)]
}
