//! What the steps of each rank of a ring take, and for which rank the others wait. Of this moment: never stored.

use std::collections::VecDeque;

use ringtune_shared::ids::Epoch;

use super::record::Traffic;

/// A rank is a straggler from this on: a microbatch takes it so many times as long as the median of the others.
const BECOMES: f64 = 1.2;
/// It is none any more below this: between the two, what was decided stays. In a single round it counts as slower from
/// this on.
const REMAINS: f64 = 1.1;
/// Rounds that are looked at together take at least so many seconds, and there are at least so many of them: a few seconds
/// in which a processor was busy with something else name nobody.
const WINDOW_SECONDS: f64 = 10.0;
const FEWEST_ROUNDS: usize = 6;
/// A round is of steps of about so many seconds, or of one that takes longer.
const ROUND_SECONDS: f64 = 1.0;
/// Of these rounds, the part in which a rank has to be slower before it is named: where both of two ranks are disturbed at
/// random, one is slower in half of them.
const AGREEING: f64 = 0.9;
/// What the others wait on average, as a part of what it takes longer.
const WAITED_FOR: f64 = 0.5;

/// Averages of one rank over its steps of about a second. Times in seconds a step, finite and not negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankTiming {
    /// Its place in the ring.
    pub rank: u32,
    /// The ring's.
    pub epoch: Epoch,
    /// The last step that is in it.
    pub step: u64,
    /// In the engine.
    pub compute_seconds: f64,
    /// Sending and receiving that no computation hid.
    pub exchange_seconds: f64,
    /// Waiting for slower ranks.
    pub wait_seconds: f64,
    /// What travelled. None: the worker does not say it.
    pub traffic: Option<Traffic>,
    /// Microbatches of a step that fall to it; at least 1.
    pub microbatches: u32,
}

/// The rank for which the others wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Straggler {
    /// Its place in the ring.
    pub rank: u32,
    /// How many times as long a microbatch takes it as the median of the others.
    pub slowdown: f64,
}

/// What is decided after each round, that is, whenever all ranks have said anew what their steps take.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stragglers {
    /// The newest last; all of the same ranks, in rank order.
    rounds: VecDeque<Vec<Paces>>,
    found: Option<Straggler>,
}

/// What counts of a rank's timing.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Paces {
    rank: u32,
    /// Of a microbatch.
    one: f64,
    /// Of a step.
    compute: f64,
    wait: f64,
    all: f64,
}

impl From<&RankTiming> for Paces {
    fn from(timing: &RankTiming) -> Self {
        let RankTiming { rank, compute_seconds: compute, exchange_seconds, wait_seconds: wait, .. } = *timing;
        let one = compute / f64::from(timing.microbatches.max(1));
        Self { rank, one, compute, wait, all: compute + exchange_seconds + wait }
    }
}

impl Stragglers {
    /// The straggler, if there is one.
    pub fn found(&self) -> Option<Straggler> {
        self.found
    }

    /// Takes in one more round. A rank is a straggler where a microbatch takes it at least 1.2 times as long as the median
    /// of the others, and these wait for it: a rank that merely has more microbatches than others is none, and neither is one
    /// whose slowness is hidden by something slower. A ring of one has none. What counts are the medians of the rounds
    /// of ten seconds, and of at least six; and that it was slower in nine of ten of them. A straggler stays one down to
    /// 1.1 times, so that it does not flicker.
    pub fn take(&mut self, ranks: &[RankTiming]) {
        let round: Vec<Paces> = ranks.iter().map(Paces::from).collect();
        let of_same =
            |before: &Vec<Paces>| before.iter().map(|one| one.rank).eq(round.iter().map(|one| one.rank));
        if !self.rounds.back().is_none_or(of_same) {
            *self = Self::default();
        }
        self.rounds.push_back(round);
        while self.is_enough(1) {
            self.rounds.pop_front();
        }
        self.found = if self.is_enough(0) { self.decide() } else { None };
    }

    /// Whether the rounds but for the `oldest` are a window.
    fn is_enough(&self, oldest: usize) -> bool {
        let seconds = |round: &Vec<Paces>| round.iter().map(|one| one.all).fold(ROUND_SECONDS, f64::max);
        let rounds = self.rounds.iter().skip(oldest);
        rounds.clone().count() >= FEWEST_ROUNDS && rounds.map(seconds).sum::<f64>() >= WINDOW_SECONDS
    }

    fn decide(&self) -> Option<Straggler> {
        let medians = self.medians();
        let remains = self.found.and_then(|found| waited_for(found.rank, &medians, REMAINS));
        remains.or_else(|| {
            let slowest = medians.iter().max_by(|a, b| a.one.total_cmp(&b.one))?;
            waited_for(slowest.rank, &medians, BECOMES).filter(|found| self.is_mostly_slower(found.rank))
        })
    }

    /// Of each rank, over the rounds.
    fn medians(&self) -> Vec<Paces> {
        let of = |place: usize, number: fn(&Paces) -> f64| {
            median(self.rounds.iter().filter_map(|round| round.get(place)).map(number).collect())
        };
        let ranks = self.rounds.back().into_iter().flatten().enumerate();
        let pace = |(place, one): (usize, &Paces)| {
            Some(Paces {
                rank: one.rank,
                one: of(place, |one| one.one)?,
                compute: of(place, |one| one.compute)?,
                wait: of(place, |one| one.wait)?,
                all: of(place, |one| one.all)?,
            })
        };
        ranks.filter_map(pace).collect()
    }

    fn is_mostly_slower(&self, rank: u32) -> bool {
        let slower = |round: &&Vec<Paces>| slowdown(rank, round).is_some_and(|times| times >= REMAINS);
        let count = self.rounds.iter().filter(slower).count();
        count as f64 >= AGREEING * self.rounds.len() as f64
    }
}

/// The rank, where it is so many times slower than the others, and they wait for it.
fn waited_for(rank: u32, ranks: &[Paces], factor: f64) -> Option<Straggler> {
    let own = ranks.iter().find(|one| one.rank == rank)?;
    let slowdown = slowdown(rank, ranks)?;
    let longer = own.compute - of_others(rank, ranks, |other| other.compute)?;
    let wait = of_others(rank, ranks, |other| other.wait)?;
    (slowdown >= factor && longer > 0.0 && wait >= WAITED_FOR * longer)
        .then_some(Straggler { rank, slowdown })
}

/// How many times as long a microbatch takes the rank as the median of the others. None: nothing to compare it with.
fn slowdown(rank: u32, ranks: &[Paces]) -> Option<f64> {
    let own = ranks.iter().find(|one| one.rank == rank)?;
    let others = of_others(rank, ranks, |other| other.one)?;
    (others > 0.0).then(|| own.one / others)
}

/// The median of all ranks but one.
fn of_others(rank: u32, ranks: &[Paces], number: fn(&Paces) -> f64) -> Option<f64> {
    median(ranks.iter().filter(|one| one.rank != rank).map(number).collect())
}

/// None of nothing.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let upper = *numbers.get(numbers.len() / 2)?;
    let lower = *numbers.get((numbers.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring in which everybody waits for the slowest, as rings do.
    fn ring(compute: &[f64]) -> Vec<RankTiming> {
        let longest = compute.iter().copied().fold(0.0, f64::max);
        let timing = |(rank, compute): (u32, &f64)| RankTiming {
            rank,
            epoch: Epoch::FIRST,
            step: 1,
            compute_seconds: *compute,
            exchange_seconds: 0.01,
            wait_seconds: longest - compute,
            traffic: None,
            microbatches: 1,
        };
        (0..).zip(compute).map(timing).collect()
    }

    fn settled(ranks: &[RankTiming]) -> Option<u32> {
        let mut stragglers = Stragglers::default();
        (0..10).for_each(|_| stragglers.take(ranks));
        stragglers.found().map(|found| found.rank)
    }

    #[test]
    fn the_others_wait_for_a_straggler() {
        for (compute, expected) in [
            (vec![], None),
            (vec![9.0], None),
            (vec![1.0, 1.0], None),
            (vec![1.0, 1.19], None),
            (vec![1.0, 1.21], Some(1)),
            (vec![3.0, 1.0], Some(0)),
            (vec![1.0, 1.0, 1.1, 2.0], Some(3)),
            // Of two that are slow one is named first.
            (vec![1.0, 1.0, 2.0, 2.0], Some(3)),
            // Most are slow: that is no straggler, but a fast one or two.
            (vec![1.0, 2.0, 2.0, 2.0], None),
            (vec![1.0, 2.0, 2.5], Some(2)),
            (vec![0.0, 0.0], None),
        ] {
            assert_eq!(settled(&ring(&compute)), expected, "{compute:?}");
        }
    }

    #[test]
    fn more_work_or_slowness_for_which_nobody_waits_is_no_straggling() {
        // Of four microbatches, rank 0 of three has two.
        let mut uneven = ring(&[2.0, 1.0, 1.0]);
        uneven[0].microbatches = 2;
        assert_eq!(settled(&uneven), None);
        // It takes long, but its share is so small that it is done before the others.
        let mut little = ring(&[2.0, 1.5]);
        little[0].microbatches = 2;
        assert_eq!(settled(&little), None);
        // The network takes the time of both.
        let mut hidden = ring(&[1.0, 1.5]);
        hidden[0].wait_seconds = 0.1;
        assert_eq!(settled(&hidden), None);
    }

    /// Rounds in turn until somebody is named, or no more; how many it took.
    fn rounds_until(stragglers: &mut Stragglers, rounds: &[Vec<RankTiming>], named: Option<u32>) -> usize {
        for (number, round) in (1..=200).zip(rounds.iter().cycle()) {
            stragglers.take(round);
            if stragglers.found().map(|found| found.rank) == named {
                return number;
            }
        }
        panic!("{named:?} is not what comes of it: {:?}", stragglers.found());
    }

    #[test]
    fn a_straggler_is_named_after_ten_seconds_and_stays_one_for_a_while() {
        let (even, slow, between) = (ring(&[0.1, 0.1]), ring(&[0.1, 0.13]), ring(&[0.1, 0.115]));
        let mut stragglers = Stragglers::default();
        assert_eq!(rounds_until(&mut stragglers, std::slice::from_ref(&slow), Some(1)), 10);
        let slowdown = stragglers.found().unwrap().slowdown;
        assert!((slowdown - 1.3).abs() < 1e-9, "{slowdown}");
        // Less slow is slow enough to stay what it is, as long as it likes.
        (0..100).for_each(|_| stragglers.take(&between));
        assert_eq!(stragglers.found().map(|found| found.rank), Some(1));
        // It recovers: half of the rounds that are looked at have to say so.
        assert_eq!(rounds_until(&mut stragglers, &[even], None), 5);
        // Between the two it is none when it was none.
        (0..100).for_each(|_| stragglers.take(&between));
        assert_eq!(stragglers.found(), None);
        // Steps that take long are fewer, and no less than six.
        let mut stragglers = Stragglers::default();
        assert_eq!(rounds_until(&mut stragglers, &[ring(&[20.0, 40.0])], Some(1)), FEWEST_ROUNDS);
        // From one to the other: when nearly all of the rounds say so.
        assert_eq!(rounds_until(&mut stragglers, &[ring(&[40.0, 20.0])], Some(0)), FEWEST_ROUNDS);
    }

    #[test]
    fn noise_names_nobody() {
        // Two ranks of a machine with other work to do: in each round, one of them or both are disturbed by as much as
        // twice their time. 5,000 rounds, an hour and a half.
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1_u64 << 31) as f64
        };
        let mut stragglers = Stragglers::default();
        let mut named = 0;
        for _ in 0..5_000 {
            stragglers.take(&ring(&[0.05 * (1.0 + random().powi(2)), 0.05 * (1.0 + random().powi(2))]));
            named += usize::from(stragglers.found().is_some());
        }
        assert!(named <= 100, "{named} of 5,000 rounds");
        // A few bad seconds now and then.
        let mut stragglers = Stragglers::default();
        for round in 0..1_000 {
            stragglers.take(&ring(&[0.05, if round % 20 < 4 { 0.2 } else { 0.05 }]));
            assert_eq!(stragglers.found(), None, "round {round}");
        }
    }

    #[test]
    fn other_ranks_begin_from_nothing() {
        let mut stragglers = Stragglers::default();
        rounds_until(&mut stragglers, &[ring(&[1.0, 2.0])], Some(1));
        stragglers.take(&ring(&[1.0, 2.0, 2.0]));
        assert_eq!((stragglers.found(), stragglers.rounds.len()), (None, 1));
    }
}
