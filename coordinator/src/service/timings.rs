//! What the steps of each rank of a job take: the newest word of each, in memory only.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ringtune_shared::ids::Epoch;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::core::{RankTiming, Straggler, Stragglers};

/// Between two looks of one watcher.
const PAUSE: Duration = Duration::from_millis(500);

/// What a step takes on each rank of a ring that has said so.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RingTimings {
    /// In rank order; empty when what was said before is over.
    pub ranks: Vec<RankTiming>,
    /// The one of them for which the others wait.
    pub straggler: Option<Straggler>,
}

/// The newest word of every rank of one epoch; no more entries than the ring has members.
#[derive(Debug, Default)]
pub(super) struct Timings {
    newest: BTreeMap<u32, RankTiming>,
    /// Who spoke since it was last decided who straggles.
    spoke: BTreeSet<u32>,
    stragglers: Stragglers,
    /// Counts changes.
    version: u64,
}

impl Timings {
    /// Timings of a ring of so many ranks, of the present epoch alone.
    pub(super) fn put(&mut self, members: usize, timing: RankTiming) {
        self.keep_only(Some(timing.epoch));
        self.version += 1;
        self.newest.insert(timing.rank, timing);
        self.spoke.insert(timing.rank);
        if self.spoke.len() >= members {
            self.spoke.clear();
            let ranks: Vec<_> = self.newest.values().copied().collect();
            self.stragglers.take(&ranks);
        }
    }

    /// What was said in other epochs is over. Whether there was anything.
    pub(super) fn keep_only(&mut self, epoch: Option<Epoch>) -> bool {
        let over = self.newest.values().next().is_some_and(|timing| Some(timing.epoch) != epoch);
        if over {
            *self = Self { version: self.version + 1, ..Self::default() };
        }
        over
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    pub(super) fn straggler(&self) -> Option<Straggler> {
        self.stragglers.found()
    }

    /// All that is known now.
    pub(super) fn now(&self) -> RingTimings {
        RingTimings { ranks: self.newest.values().copied().collect(), straggler: self.straggler() }
    }
}

/// One watcher's view of them.
pub(super) struct TimingsView {
    timings: watch::Receiver<Timings>,
    seen: u64,
    not_before: Instant,
}

impl TimingsView {
    /// One that has seen nothing yet.
    pub(super) fn new(timings: watch::Receiver<Timings>) -> Self {
        // That something is over is no news to one who never heard of it.
        let seen =
            Some(timings.borrow()).filter(|timings| timings.is_empty()).map_or(0, |timings| timings.version);
        Self { timings, seen, not_before: Instant::now() }
    }

    /// All of them, once they have changed since the last call. Nothing is lost when it is dropped in mid-wait.
    pub(super) async fn next(&mut self) -> RingTimings {
        loop {
            tokio::time::sleep_until(self.not_before).await;
            let changed = {
                let timings = self.timings.borrow_and_update();
                let changed = timings.version != self.seen;
                self.seen = timings.version;
                changed.then(|| timings.now())
            };
            if let Some(changed) = changed {
                self.not_before = Instant::now() + PAUSE;
                return changed;
            }
            if self.timings.changed().await.is_err() {
                // The job is gone: its events will say so, or the store.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn timing(epoch: u64, rank: u32, compute_seconds: f64) -> RankTiming {
        RankTiming {
            rank,
            epoch: Epoch(epoch),
            step: 1,
            compute_seconds,
            exchange_seconds: 0.0,
            wait_seconds: 2.0 - compute_seconds,
            traffic: None,
            microbatches: 1,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watcher_gets_the_newest_of_all_ranks_and_hears_when_they_are_over() {
        let sender = watch::Sender::new(Timings::default());
        let put = |timing| sender.send_modify(|timings| timings.put(2, timing));
        let mut view = TimingsView::new(sender.subscribe());
        for _ in 0..100 {
            put(timing(1, 1, 2.0));
            put(timing(1, 0, 1.0));
        }
        let told = view.next().await;
        assert_eq!((told.ranks.len(), told.straggler), (2, Some(Straggler { rank: 1, slowdown: 2.0 })));
        assert_eq!(told.ranks[0], timing(1, 0, 1.0));
        // Another ring begins from nothing.
        put(timing(2, 0, 1.5));
        let told = view.next().await;
        assert_eq!((told.ranks.as_slice(), told.straggler), ([timing(2, 0, 1.5)].as_slice(), None));
        sender.send_modify(|timings| assert!(!timings.keep_only(Some(Epoch(2)))));
        sender.send_modify(|timings| assert!(timings.keep_only(None)));
        assert_eq!(view.next().await, RingTimings::default());
        let nothing = tokio::time::timeout(Duration::from_secs(60), view.next()).await;
        assert!(nothing.is_err(), "told again: {nothing:?}");
        let late =
            tokio::time::timeout(Duration::from_secs(60), TimingsView::new(sender.subscribe()).next()).await;
        assert!(late.is_err(), "told of nothing: {late:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watcher_is_told_twice_a_second_at_most() {
        let sender = watch::Sender::new(Timings::default());
        let mut view = TimingsView::new(sender.subscribe());
        let began = Instant::now();
        let speaker = async {
            for number in 0..1000 {
                let step = RankTiming { step: number, ..timing(1, 0, 1.0) };
                sender.send_modify(|timings| timings.put(1, step));
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        };
        let listener = async {
            let mut told = 0;
            while view.next().await.ranks.iter().all(|timing| timing.step < 999) {
                told += 1;
            }
            told
        };
        let ((), told) = tokio::join!(speaker, listener);
        assert!(told > 2 && told <= began.elapsed().as_millis() / 500 + 2, "{told} messages");
    }
}
