//! Networks that are cut, slow, or wrong.

use std::time::Duration;

use crate::chaos::{
    proxy::Weather,
    row::{Act, Act::*, Ground, Ground::*, Row, Who::*, pause},
};

/// Floats of a row whose gradients are 256 KB.
const WIDE: usize = 1024;

pub(super) fn rows() -> Vec<Row> {
    [cables(), broken(), connections(), slow_ones(), mixed()].concat()
}

/// Links that break for so long that whoever was left out is tried again, and again.
pub(super) fn long() -> Vec<Row> {
    // A ring without one of its ranks takes 400 ms for a step, and with it 200 ms.
    let row = |name, workers, steps| {
        Row::new(name, workers)
            .on(Namespaces)
            .flags(&["--gradient-takes=200"])
            .steps(steps)
            .deadline(2_000)
            .within(6)
    };
    let long = || pause(600_000..601_000);
    let ten_minutes = vec![
        row("a_link_of_two_is_dropped_for_ten_minutes", 2, 5_000).acts([
            Step(20),
            Lose(Worker(1), Worker(2)),
            long(),
            Members(1),
            Find(Worker(1), Worker(2)),
            long(),
            Members(2),
        ]),
        row("a_link_of_five_is_dropped_for_ten_minutes", 5, 2_000).acts([
            Step(20),
            Lose(Rank(1), Rank(2)),
            long(),
            Members(4),
        ]),
    ];
    let for_good = [
        broken_for_good("a_link_of_two_is_dropped_for_good", 2, Broken::Dropped),
        broken_for_good("a_link_of_two_is_rejected_for_good", 2, Broken::Rejected),
        broken_for_good("a_link_of_three_is_rejected_for_good", 3, Broken::Rejected),
        broken_for_good("a_link_of_three_is_reset_for_good", 3, Broken::Reset),
        broken_for_good("a_link_of_five_is_dropped_for_good", 5, Broken::Dropped),
        broken_for_good("a_link_of_five_is_reset_for_good", 5, Broken::Reset),
    ];
    let for_a_while = [
        broken_for_a_while("a_link_of_two_is_dropped_for_twenty_seconds", 2, Broken::Dropped),
        broken_for_a_while("a_link_of_two_is_rejected_for_twenty_seconds", 2, Broken::Rejected),
        broken_for_a_while("a_link_of_two_is_reset_for_twenty_seconds", 2, Broken::Reset),
        broken_for_a_while("a_link_of_three_is_dropped_for_twenty_seconds", 3, Broken::Dropped),
        broken_for_a_while("a_link_of_three_is_rejected_for_twenty_seconds", 3, Broken::Rejected),
        broken_for_a_while("a_link_of_three_is_reset_for_twenty_seconds", 3, Broken::Reset),
        broken_for_a_while("a_link_of_five_is_dropped_for_twenty_seconds", 5, Broken::Dropped),
        broken_for_a_while("a_link_of_five_is_rejected_for_twenty_seconds", 5, Broken::Rejected),
        broken_for_a_while("a_link_of_five_is_reset_for_twenty_seconds", 5, Broken::Reset),
    ];
    [ten_minutes, for_good.into(), for_a_while.into()].concat()
}

/// A fault of a link from one worker to another.
#[derive(Clone, Copy)]
enum Broken {
    /// Packets of that direction are lost.
    Dropped,
    /// A firewall refuses the connection.
    Rejected,
    /// Connections to the second worker are reset.
    Reset,
}

impl Broken {
    fn ground(self) -> Ground {
        match self {
            Self::Dropped | Self::Rejected => Namespaces,
            Self::Reset => Proxies,
        }
    }

    /// Breaks the link from rank 1 to the next one, of two ranks to rank 0.
    fn act(self, ranks: usize) -> Act {
        let (from, to) = (Rank(1), Rank(2 % ranks));
        match self {
            Self::Dropped => Lose(from, to),
            Self::Rejected => Refuse(from, to),
            Self::Reset => RingLink(to, Weather::reset()),
        }
    }
}

/// The ring goes on without one end of the link, which is tried again and does not stop it.
fn broken_for_good(name: &'static str, workers: usize, how: Broken) -> Row {
    let steps = if workers == 2 { 400 } else { 150 };
    Row::new(name, workers).on(how.ground()).steps(steps).within(6).acts([
        Step(20),
        how.act(workers),
        Says("is left out of the ring"),
        Members(workers - 1),
    ])
}

/// As above; it comes back some time after the link is mended.
fn broken_for_a_while(name: &'static str, workers: usize, how: Broken) -> Row {
    Row::new(name, workers)
        .on(how.ground())
        .flags(&["--gradient-takes=100"])
        .steps(400)
        .deadline(200)
        .within(6)
        .acts([
            Step(20),
            how.act(workers),
            Members(workers - 1),
            pause(20_000..21_000),
            MendLink,
            Members(workers),
        ])
}

/// The gate's rows: one of each kind and size.
fn broken() -> Vec<Row> {
    vec![
        Row::new("a_link_of_two_is_reset_for_good", 2).on(Proxies).steps(400).deadline(120).within(6).acts([
            Step(20),
            RingLink(Rank(1), Weather::reset()),
            Says("is left out of the ring"),
            Says("does not join the ring"),
        ]),
        broken_for_good("a_link_of_three_is_dropped_for_good", 3, Broken::Dropped),
        broken_for_good("a_link_of_five_is_rejected_for_good", 5, Broken::Rejected),
    ]
}

fn cables() -> Vec<Row> {
    let row = |name| Row::new(name, 2).on(Namespaces).steps(100);
    vec![
        row("a_worker_is_cut_off_from_all").acts([
            Step(20),
            CutCable(Worker(2)),
            pause(5_000..6_000),
            MendCable(Worker(2)),
        ]),
        row("a_worker_is_heard_by_nobody").acts([
            Step(20),
            Lose(Worker(2), Worker(1)),
            pause(5_000..6_000),
            Find(Worker(2), Worker(1)),
        ]),
    ]
}

/// Who is left out for its link does not come back before the job ends: nobody could mend that link by its rank.
fn connections() -> Vec<Row> {
    let row = |name| Row::new(name, 2).on(Proxies).steps(100);
    let wide = |name| row(name).large(WIDE);
    vec![
        row("one_link_of_the_ring_breaks").acts([Step(20), RingLink(Rank(1), Weather::black_hole())]),
        wide("a_connection_breaks_within_a_chunk").acts([Step(20), CutRingLinkAfter(Rank(1), 100_003)]),
        row("all_connections_of_a_worker_break").acts([Step(20), pause(0..60), CutRingLink(Rank(1))]),
        // Worker 1 computes for four seconds: nothing but pulses goes over the links.
        row("an_idle_link_goes_dead")
            .steps(40)
            .flag_of(1, "--slow-gradient=15")
            .flag_of(1, "--slow-gradient-takes=4000")
            .acts([Step(14), pause(100..300), RingLink(Rank(1), Weather::black_hole())]),
        wide("bits_flip_on_the_way").acts([
            Step(10),
            FlipBits(Rank(1), 1),
            StepOfEpoch(2),
            FlipBits(Rank(0), 1),
        ]),
    ]
}

fn slow_ones() -> Vec<Row> {
    let late = Weather::late(Duration::from_millis(50), Duration::from_millis(20));
    vec![
        Row::new("all_links_are_slow_and_uneven", 2).on(Proxies).steps(40).one_ring().acts([
            Step(2),
            RingLink(Rank(0), late),
            RingLink(Rank(1), late),
            CoordinatorLink(Rank(0), late),
            CoordinatorLink(Rank(1), late),
        ]),
        // A chunk of 256 KB takes more than a second, and the signs of life wait behind it.
        Row::new("one_worker_has_a_narrow_link", 2).large(WIDE).on(Proxies).one_ring().acts([
            Step(20),
            RingLink(Rank(1), Weather::narrow(200_000)),
            pause(4_000..5_000),
            RingLink(Rank(1), Weather::default()),
        ]),
    ]
}

fn mixed() -> Vec<Row> {
    vec![Row::new("everything_at_random", 3).on(Proxies).steps(400).deadline(120).acts([Step(10), Mixed(15)])]
}
