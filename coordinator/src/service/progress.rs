//! How far the ranks of a job are: the newest word of each, in memory only.
//!
//! A rank that prepares thousands of pictures may report each. Of that a watcher is told where the ranks are, a few
//! times a second; what it missed is not worth having.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::core::Progress;

/// Between two looks of one watcher.
const PAUSE: Duration = Duration::from_millis(500);

/// The newest word of every rank; no more entries than the ring has members.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    newest: BTreeMap<u32, (u64, Progress)>,
    /// Counts changes.
    version: u64,
}

impl Ranks {
    pub(super) fn put(&mut self, progress: Progress) {
        self.version += 1;
        self.newest.insert(progress.rank, (self.version, progress));
    }

    pub(super) fn clear(&mut self) {
        self.newest.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    /// What changed after `version`, in rank order.
    fn since(&self, version: u64) -> Vec<Progress> {
        let changed = self.newest.values().filter(|(number, _)| *number > version);
        changed.map(|(_, progress)| progress.clone()).collect()
    }
}

/// One watcher's view of a job's ranks.
pub(super) struct RanksView {
    ranks: watch::Receiver<Ranks>,
    seen: u64,
    not_before: Instant,
}

impl RanksView {
    /// One that has seen nothing yet.
    pub(super) fn new(ranks: watch::Receiver<Ranks>) -> Self {
        Self { ranks, seen: 0, not_before: Instant::now() }
    }

    /// The ranks that went on since the last call, at least one. Nothing is lost when it is dropped in mid-wait.
    pub(super) async fn next(&mut self) -> Vec<Progress> {
        loop {
            tokio::time::sleep_until(self.not_before).await;
            let changed = {
                let ranks = self.ranks.borrow_and_update();
                let changed = ranks.since(self.seen);
                self.seen = ranks.version;
                changed
            };
            if !changed.is_empty() {
                self.not_before = Instant::now() + PAUSE;
                return changed;
            }
            if self.ranks.changed().await.is_err() {
                // The job is gone: its events will say so, or the store.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ProgressStage;

    fn progress(rank: u32, stage: ProgressStage, done: u64) -> Progress {
        Progress { rank, stage, done, total: 1000 }
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_reports_a_watcher_gets_the_newest_a_few_times_a_second() {
        let sender = watch::Sender::new(Ranks::default());
        let mut view = RanksView::new(sender.subscribe());
        let began = Instant::now();
        let reporter = async {
            for done in 0..=1000 {
                sender.send_modify(|ranks| ranks.put(progress(0, ProgressStage::Fetch, done)));
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        };
        let reader = async {
            let mut told = Vec::new();
            while told.last().is_none_or(|last: &Progress| last.done < 1000) {
                told.extend(view.next().await);
            }
            told
        };
        let ((), told) = tokio::join!(reporter, reader);
        assert!((began.elapsed().as_millis() / 500 + 2) as usize >= told.len(), "{} messages", told.len());
        assert!(told.len() > 2 && told.is_sorted_by_key(|progress| progress.done));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_watcher_is_told_where_each_rank_is_once() {
        let sender = watch::Sender::new(Ranks::default());
        for (rank, stage, done) in [
            (1, ProgressStage::Fetch, 1),
            (0, ProgressStage::Fetch, 9),
            (1, ProgressStage::Fetch, 2),
            (1, ProgressStage::Load, 0),
        ] {
            sender.send_modify(|ranks| ranks.put(progress(rank, stage, done)));
        }
        let mut late = RanksView::new(sender.subscribe());
        assert_eq!(
            late.next().await,
            [progress(0, ProgressStage::Fetch, 9), progress(1, ProgressStage::Load, 0)]
        );
        let nothing = tokio::time::timeout(Duration::from_secs(60), late.next()).await;
        assert!(nothing.is_err(), "told again: {nothing:?}");
        // What is over is told to nobody; what comes after it is.
        sender.send_modify(Ranks::clear);
        sender.send_modify(|ranks| ranks.put(progress(0, ProgressStage::Draw, 1)));
        assert_eq!(late.next().await, [progress(0, ProgressStage::Draw, 1)]);
        assert_eq!(RanksView::new(sender.subscribe()).next().await, [progress(0, ProgressStage::Draw, 1)]);
    }
}
