//! What the steps of each rank of a ring take, and for which rank the others wait. Of this moment: never stored.

use ringtune_shared::ids::Epoch;

/// A rank is a straggler from this on: a microbatch takes it so many times as long as the median of the others.
const BECOMES: f64 = 1.2;
/// It is none any more below this: between the two, what was decided stays.
const REMAINS: f64 = 1.1;
/// Rounds in a row that must agree.
const ROUNDS: u32 = 2;
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
    /// Sending and receiving.
    pub exchange_seconds: f64,
    /// Waiting for other ranks.
    pub wait_seconds: f64,
    /// Microbatches of a step that fall to it; at least 1.
    pub microbatches: u32,
}

/// What is decided after each round, that is, whenever all ranks have said anew what their steps take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Straggler {
    /// The rank for which the others wait.
    rank: Option<u32>,
    /// What the last rounds said instead, and how many of them.
    otherwise: Option<(Option<u32>, u32)>,
}

impl Straggler {
    /// The rank, if there is one.
    pub fn rank(self) -> Option<u32> {
        self.rank
    }

    /// After one more round. A rank is a straggler where a microbatch takes it at least 1.2 times as long as the median of
    /// the others, and these wait for it: a rank that merely has more microbatches than others is none, and neither is one
    /// whose slowness is hidden by something slower. A ring of one has none. Two rounds in a row have to agree, and a
    /// straggler stays one down to 1.1 times, so that it does not flicker.
    #[must_use]
    pub fn after(self, ranks: &[RankTiming]) -> Self {
        let found = match self.rank {
            Some(rank) if is_waited_for(rank, ranks, REMAINS) => Some(rank),
            _ => slowest(ranks).filter(|rank| is_waited_for(*rank, ranks, BECOMES)),
        };
        if found == self.rank {
            return Self { rank: self.rank, otherwise: None };
        }
        let rounds = match self.otherwise {
            Some((before, rounds)) if before == found => rounds + 1,
            _ => 1,
        };
        if rounds >= ROUNDS {
            return Self { rank: found, otherwise: None };
        }
        Self { rank: self.rank, otherwise: Some((found, rounds)) }
    }
}

fn slowest(ranks: &[RankTiming]) -> Option<u32> {
    ranks.iter().max_by(|a, b| seconds_of_one(a).total_cmp(&seconds_of_one(b))).map(|rank| rank.rank)
}

fn is_waited_for(rank: u32, ranks: &[RankTiming], factor: f64) -> bool {
    let Some(own) = ranks.iter().find(|one| one.rank == rank) else { return false };
    let others = |number: fn(&RankTiming) -> f64| {
        median(ranks.iter().filter(|one| one.rank != rank).map(number).collect())
    };
    let (Some(one), Some(compute), Some(wait)) =
        (others(seconds_of_one), others(|other| other.compute_seconds), others(|other| other.wait_seconds))
    else {
        return false;
    };
    let longer = own.compute_seconds - compute;
    seconds_of_one(own) >= factor * one && longer > 0.0 && wait >= WAITED_FOR * longer
}

/// Of a microbatch.
fn seconds_of_one(rank: &RankTiming) -> f64 {
    rank.compute_seconds / f64::from(rank.microbatches.max(1))
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
            microbatches: 1,
        };
        (0..).zip(compute).map(timing).collect()
    }

    fn settled(ranks: &[RankTiming]) -> Option<u32> {
        (0..ROUNDS).fold(Straggler::default(), |straggler, _| straggler.after(ranks)).rank()
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

    #[test]
    fn it_does_not_flicker() {
        let (even, slow, between) = (ring(&[1.0, 1.0]), ring(&[1.0, 1.3]), ring(&[1.0, 1.15]));
        let mut straggler = Straggler::default();
        let mut rounds = |ranks: &[RankTiming]| {
            straggler = straggler.after(ranks);
            straggler.rank()
        };
        assert_eq!(rounds(&slow), None, "one round may be chance");
        assert_eq!(rounds(&even), None);
        assert_eq!(rounds(&slow), None, "the rounds before were not in a row");
        assert_eq!(rounds(&slow), Some(1));
        assert_eq!((rounds(&between), rounds(&between), rounds(&even)), (Some(1), Some(1), Some(1)));
        assert_eq!((rounds(&between), rounds(&even), rounds(&even)), (Some(1), Some(1), None));
        // Straight from one to the other.
        let other = ring(&[2.0, 1.0]);
        assert_eq!(
            (rounds(&slow), rounds(&slow), rounds(&other), rounds(&other)),
            (None, Some(1), Some(1), Some(0))
        );
    }
}
