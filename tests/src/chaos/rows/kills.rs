//! Workers that die, in every phase of a job.

use crate::chaos::{
    build::Build,
    proxy::{Way, Weather},
    row::{Act, Act::*, Ground::*, Row, Who::*, pause},
};

/// The gradient in which ranks are slow enough to be met in it. Each rank of a whole ring computes one a step.
const SLOW: [&str; 3] = ["--gradient-takes=25", "--slow-gradient=15", "--slow-gradient-takes=1200"];
/// The last step before it.
const BEFORE_SLOW: i64 = 14;
/// Floats of a row whose state is 6 MB: its update and its hash take longer than anything else of a step.
const LARGE: usize = 8192;

pub(super) fn rows() -> Vec<Row> {
    [phases(), several(), newcomers()].concat()
}

fn phases() -> Vec<Row> {
    let large = |name| Row::new(name, 2).large(LARGE);
    let computing = |name, rank| {
        Row::new(name, 2).flags(&SLOW).acts([Step(BEFORE_SLOW), pause(100..600), Kill(Rank(rank))])
    };
    vec![
        Row::new("a_worker_dies_while_it_prepares", 2)
            .flags(&["--gradient-takes=25", "--load-takes=800"])
            .acts([Preparing, pause(100..600), Kill(Rank(1))]),
        computing("a_worker_dies_while_it_computes", 1),
        computing("rank_0_dies_while_it_computes", 0),
        // Worker 1 is slow, so worker 2 has sent its gradient and waits for the other one.
        Row::new("a_worker_dies_in_the_exchange", 2)
            .flag_of(1, "--slow-gradient=15")
            .flag_of(1, "--slow-gradient-takes=1200")
            .acts([Step(BEFORE_SLOW), pause(200..600), Kill(Worker(2))]),
        large("a_worker_dies_in_the_optimizer").acts([Step(20), pause(0..100), Kill(Rank(1))]),
        large("rank_0_dies_at_a_checkpoint")
            .key("train.checkpointing_steps", 1)
            .key("train.checkpoints_total_limit", 2)
            .acts([Step(20), pause(0..100), Kill(Rank(0))]),
        // As below, but with a checkpoint in the middle of the job: it must not be seen before all of it has come.
        large("rank_0_dies_while_a_checkpoint_is_sent")
            .on(Proxies)
            .steps(80)
            .key("train.checkpointing_steps", 40)
            .acts([
                Step(30),
                CoordinatorLink(Rank(0), Weather::narrow(1_000_000)),
                Step(40),
                Uploading,
                pause(100..600),
                Kill(Rank(0)),
            ]),
        Row::new("a_worker_dies_while_it_draws_a_preview", 2)
            .flags(&["--gradient-takes=25", "--pictures-take=900"])
            .key("train.validation_prompt", "a photo of a <green-star>")
            .key("train.num_validation_images", 2)
            .key("train.validation_steps", 30)
            .acts([Step(29), pause(200..600), Kill(Rank(1))]),
        // The files of rank 0 are megabytes, and its link to the coordinator takes a tenth of that in a second.
        large("rank_0_dies_at_the_last_upload").on(Proxies).acts([
            Step(30),
            CoordinatorLink(Rank(0), Weather::narrow(200_000)),
            Step(60),
            pause(100..600),
            Kill(Rank(0)),
        ]),
    ]
}

fn several() -> Vec<Row> {
    vec![
        Row::new("two_of_three_die_at_once", 3).acts([Step(20), pause(0..60), Kill(Rank(2)), Kill(Rank(1))]),
        Row::new("all_die_and_come_back", 2).key("train.checkpointing_steps", 5).acts([
            Step(20),
            pause(0..60),
            Kill(Worker(1)),
            Kill(Worker(2)),
            pause(200..500),
            StartAgain(Worker(1)),
            StartAgain(Worker(2)),
        ]),
        all_die_and("the_newest_checkpoint_is_cut_short", TruncateCheckpoint),
        all_die_and("a_bit_of_the_newest_checkpoint_flips", FlipCheckpoint),
        Row::new("a_worker_dies_while_the_ring_forms_anew", 3).acts([
            Step(20),
            Kill(Rank(2)),
            Reforming,
            Kill(Rank(1)),
        ]),
    ]
}

/// All workers die, and the newest checkpoint is damaged.
fn all_die_and(name: &'static str, damage: Act) -> Row {
    Row::new(name, 2).key("train.checkpointing_steps", 5).acts([
        Step(23),
        Kill(Worker(1)),
        Kill(Worker(2)),
        damage,
        StartAgain(Worker(1)),
        StartAgain(Worker(2)),
    ])
}

fn newcomers() -> Vec<Row> {
    // The given state goes back on the link on which the giver is dialled; its neighbours' rows go forth.
    let slow = Weather { back: Way { held: false, bytes_per_second: Some(2_000_000) }, ..Weather::default() };
    let giving = |name, dies| {
        Row::new(name, 2).large(LARGE).on(Proxies).steps(200).acts([
            Step(10),
            RingLink(Rank(0), slow),
            Add,
            Kill(Rank(1)),
            Member(Worker(3)),
            pause(50..800),
            Kill(dies),
        ])
    };
    let coming = |name, comes, then: &[Act]| {
        Row::new(name, 2).acts([&[Step(10), Kill(Worker(2)), comes][..], then].concat())
    };
    let stays_out = |milliseconds| [StepOfEpoch(2), pause(milliseconds), NoMember(Worker(3))];
    let enters = [Member(Worker(3)), StepOfEpoch(3)];
    vec![
        Row::new("a_worker_dies_and_comes_back", 2).steps(120).acts([
            Step(20),
            Kill(Worker(2)),
            StartAgain(Worker(2)),
            StepOfEpoch(2),
            Members(2),
        ]),
        coming("a_worker_of_another_class_comes", AddOther, &stays_out(300..600)).steps(100),
        coming("a_worker_of_a_newer_build_comes", AddBuild(Build::Newer), &enters).on(Proxies).steps(120),
        // A ring that re-forms does not take in a worker whose rings cannot.
        coming("a_worker_of_an_older_build_comes", AddBuild(Build::Older), &stays_out(600..900))
            .on(Proxies)
            .steps(120),
        giving("a_newcomer_dies_while_it_takes_the_state", Worker(3)),
        giving("the_giver_of_the_state_dies_while_it_gives", Rank(0)),
    ]
}
