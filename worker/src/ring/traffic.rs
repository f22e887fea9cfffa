//! What the exchanges of a step cost one rank: how much of them its computation hid, what it waited for, and how much travelled.
//!
//! It follows from when each collective began, had its first frame and ended, and from when the rank had computed. The
//! ranks exchange these with their timings; the coordinator (`core/timing.rs`) decides who straggles.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use ringtune_shared::ring::Exchange;

/// Traffic of a step at one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Seconds of sending and receiving while this rank computed.
    pub hidden_seconds: f64,
    /// Payload sent to the next rank.
    pub sent_bytes: u64,
    /// Seconds of the ring's collectives, hidden or not, each from the first frame that came.
    pub collective_seconds: f64,
    /// Bytes for the bus bandwidth, as in NCCL's tests: of n ranks, a sum's buffer x 2(n-1)/n and a gather's x (n-1)/n.
    pub bus_bytes: f64,
}

impl Traffic {
    /// Bytes a second; 0 where nothing travelled.
    pub fn bus_bandwidth(self) -> f64 {
        if self.collective_seconds > 0.0 { self.bus_bytes / self.collective_seconds } else { 0.0 }
    }
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, more: Self) {
        self.hidden_seconds += more.hidden_seconds;
        self.sent_bytes += more.sent_bytes;
        self.collective_seconds += more.collective_seconds;
        self.bus_bytes += more.bus_bytes;
    }
}

/// A collective of a step at one rank.
#[derive(Clone, Copy, Debug)]
struct Collective {
    began: Instant,
    exchange: Exchange,
    bus_bytes: f64,
}

impl Collective {
    /// From when on frames came.
    fn moved(&self) -> Instant {
        self.began + self.exchange.wait
    }

    fn ended(&self) -> Instant {
        self.began + self.exchange.total
    }
}

/// The collectives of a step. A ring of one has none.
#[derive(Clone, Debug, Default)]
pub(super) struct Exchanges {
    collectives: Vec<Collective>,
}

/// Durations of a step's exchanges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepExchange {
    /// Seconds of sending and receiving, and of what belongs to it, that no computation hid.
    pub exchange_seconds: f64,
    /// Seconds of waiting for slower ranks.
    pub wait_seconds: f64,
    /// Its traffic.
    pub traffic: Traffic,
}

impl Exchanges {
    /// Takes in a collective over so many ranks: one part of `bytes` in `ranks` travels from each of them, so many times. A sum's
    /// buffer does so 2 (n - 1) times, a gather's rows of all ranks together n - 1 times.
    pub(super) fn add(
        &mut self,
        began: Instant,
        exchange: Exchange,
        bytes: usize,
        times: usize,
        ranks: usize,
    ) {
        if !exchange.total.is_zero() {
            let bus_bytes = bytes as f64 * times as f64 / ranks.max(1) as f64;
            self.collectives.push(Collective { began, exchange, bus_bytes });
        }
    }

    /// All of them together. `computed`: when this rank had computed; what came before is hidden. `behind`: how many
    /// seconds longer the slowest rank computed.
    ///
    /// Only the rank behind a slow one waits for its first frame; the others have frames at once, and then none for as long. So
    /// at least what the slowest computed longer was waited for, if this rank had nothing else to do by then.
    pub(super) fn seen(&self, computed: Instant, behind: f64) -> StepExchange {
        let Some(last) = self.collectives.last() else { return StepExchange::default() };
        let exposed = last.ended().saturating_duration_since(computed).as_secs_f64();
        let sum = |of: &dyn Fn(&Collective) -> Duration| {
            self.collectives.iter().map(of).sum::<Duration>().as_secs_f64()
        };
        let first_frames = sum(&|one| one.moved().saturating_duration_since(one.began.max(computed)));
        let wait_seconds = first_frames.max(behind).clamp(0.0, exposed);
        let traffic = Traffic {
            hidden_seconds: sum(&|one| one.ended().min(computed).saturating_duration_since(one.moved())),
            sent_bytes: self.collectives.iter().map(|one| one.exchange.sent_bytes).sum(),
            collective_seconds: sum(&|one| one.ended().saturating_duration_since(one.moved())),
            bus_bytes: self.collectives.iter().map(|one| one.bus_bytes).sum(),
        };
        StepExchange { exchange_seconds: exposed - wait_seconds, wait_seconds, traffic }
    }
}

/// Seconds that the slowest rank computed longer than rank `own`. `seconds`: of each microbatch; `blocks`: the microbatches of
/// each rank.
pub(super) fn behind(seconds: &[f32], blocks: &[Range<usize>], own: usize) -> f64 {
    let of = |block: &Range<usize>| -> f64 {
        seconds.get(block.clone()).unwrap_or_default().iter().map(|seconds| f64::from(*seconds)).sum()
    };
    let slowest = blocks.iter().map(of).fold(0.0, f64::max);
    (slowest - blocks.get(own).map_or(0.0, of)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn exchange(total: f64, wait: f64, sent_bytes: u64) -> Exchange {
        Exchange { total: seconds(total), wait: seconds(wait), sent_bytes, sent_segments: 1 }
    }

    /// In thousandths of a second.
    fn rounded(seen: StepExchange) -> [f64; 4] {
        let StepExchange { exchange_seconds, wait_seconds, traffic } = seen;
        [exchange_seconds, wait_seconds, traffic.hidden_seconds, traffic.collective_seconds]
            .map(|seconds| (seconds * 1e3).round() / 1e3)
    }

    #[test]
    fn what_the_computation_hid_is_told_apart_from_what_it_did_not() {
        let began = Instant::now();
        let mut all = Exchanges::default();
        // One bucket waits while the backward pass goes on, the next ends behind it, and the losses come last.
        all.add(began + seconds(1.0), exchange(0.5, 0.2, 700), 1_000, 6, 4);
        all.add(began + seconds(1.5), exchange(1.0, 0.25, 300), 3_000, 6, 4);
        all.add(began + seconds(2.75), exchange(0.25, 0.125, 8), 16, 3, 4);
        let seen = all.seen(began + seconds(2.0), 0.0);
        // From 2 to 3 s nothing is computed: 0.125 s of it are waited, and a pause is part of the exchange.
        assert_eq!(rounded(seen), [0.875, 0.125, 0.3 + 0.25, 0.3 + 0.75 + 0.125]);
        assert_eq!(seen.traffic.sent_bytes, 1_008);
        assert_eq!(seen.traffic.bus_bytes, 4_000.0 * 1.5 + 16.0 * 0.75);
        assert_eq!(seen.traffic.bus_bandwidth(), seen.traffic.bus_bytes / seen.traffic.collective_seconds);
        // A bucket that begins to wait while something is computed, and goes on waiting.
        let seen = all.seen(began + seconds(1.625), 0.0);
        assert_eq!(rounded(seen), [1.375 - 0.25, 0.25, 0.3, 1.175]);
    }

    #[test]
    fn a_rank_far_from_the_slow_one_waits_for_it_too() {
        let computed = Instant::now();
        let mut all = Exchanges::default();
        // Its neighbour's frame came at once; then nothing, until the slow rank had computed.
        all.add(computed, exchange(1.1, 0.001, 100), 400, 3, 4);
        assert_eq!(rounded(all.seen(computed, 1.0)), [0.1, 1.0, 0.0, 1.099]);
        // It never waited longer than it was there.
        assert_eq!(rounded(all.seen(computed, 5.0)), [0.0, 1.1, 0.0, 1.099]);
        assert_eq!(rounded(all.seen(computed, 0.0))[1], 0.001);
    }

    #[test]
    fn one_rank_alone_exchanges_nothing() {
        let mut all = Exchanges::default();
        all.add(Instant::now(), Exchange::default(), 400, 0, 1);
        assert_eq!(all.seen(Instant::now(), 0.0), StepExchange::default());
        assert_eq!(Traffic::default().bus_bandwidth(), 0.0);
    }

    #[test]
    fn the_slowest_rank_is_behind_nobody() {
        let blocks = [0..2, 2..3, 3..3];
        let seconds = [1.0, 0.5, 2.0];
        assert_eq!([0, 1, 2].map(|own| behind(&seconds, &blocks, own)), [0.5, 0.0, 2.0]);
        assert_eq!(behind(&[f32::NAN], &[0..1, 1..1], 0), 0.0);
        assert_eq!(behind(&[], &[0..1, 1..1], 7), 0.0);
    }
}
